"""What each home of a model serves as, and how an op changes that: the rules, without a device.

An op that makes no sense (a home lent that holds weights, a layer loaded that does not
cycle) is a mistake of the caller: the ledger has planned what cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from policies.memory.ops import Cycle, Lend, Load, Withdraw


@dataclass(frozen=True, slots=True)
class Resident:
    """Holds the weights of a layer."""

    layer: int


@dataclass(frozen=True, slots=True)
class Loading:
    """The weights of a layer are on their way; until they are published it cycles."""

    layer: int


@dataclass(frozen=True, slots=True)
class Lent:
    """Is a KV range of a borrower."""

    borrower: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Cycling layers take turns in it."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Serves as nothing: only in the midst of a change."""


HomeUse = Resident | Loading | Lent | Slot | Unused


@dataclass(frozen=True, slots=True)
class Homes:
    """The homes of one model.

    Attributes:
        uses: by home.
        cycling: layers that take turns in the slots, increasing.
        slots: homes that serve as slots, in the order in which the ops name them.
    """

    uses: tuple[HomeUse, ...]
    cycling: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    @classmethod
    def all_resident(cls, n_layers: int) -> Homes:
        """Every layer at home."""
        return cls(uses=tuple(Resident(layer) for layer in range(n_layers)))

    def home_of(self, layer: int) -> int | None:
        """The home from which a layer runs; ``None`` while it cycles."""
        return self.uses.index(Resident(layer)) if Resident(layer) in self.uses else None

    def withdraw(self, op: Withdraw) -> Homes:
        """End a loan."""
        self._refuse_unless(self.uses[op.home] == Lent(op.borrower), op)
        return self._put({op.home: Unused()})

    def lend(self, op: Lend) -> Homes:
        """Make an unused home a KV range."""
        self._refuse_unless(isinstance(self.uses[op.home], Unused), op)
        return self._put({op.home: Lent(op.borrower)})

    def load(self, op: Load) -> Homes:
        """Begin to fill an unused home with a layer that cycles."""
        self._refuse_unless(isinstance(self.uses[op.home], Unused) and op.layer in self.cycling, op)
        return self._put({op.home: Loading(op.layer)})

    def cycle(self, op: Cycle) -> Homes:
        """Change which layers cycle, and through which slots.

        A resident layer that enters leaves its home, one whose weights were on their way
        and that leaves the cycle is resident from now on. As many layers as there are
        slots too few loads for come to rest in what were their slots, as
        ``policies/memory/ops.py`` pairs them.
        """
        uses: list[HomeUse] = list(self.uses)
        for home, use in enumerate(self.uses):
            if isinstance(use, Slot) or (isinstance(use, Resident) and use.layer in op.cycling):
                uses[home] = Unused()
            if isinstance(use, Loading) and use.layer not in op.cycling:
                uses[home] = Resident(use.layer)
        for home in op.slots:
            self._refuse_unless(isinstance(uses[home], Unused), op)
            uses[home] = Slot()
        placed = {use.layer for use in uses if isinstance(use, Resident)} | set(op.cycling)
        at_rest = [layer for layer in range(len(uses)) if layer not in placed]
        seats = [slot for slot in self.slots if isinstance(uses[slot], Unused)]
        self._refuse_unless(len(at_rest) <= len(seats), op)
        for layer, home in _seated(at_rest, seats):
            uses[home] = Resident(layer)
        return Homes(uses=tuple(uses), cycling=op.cycling, slots=op.slots)

    def _put(self, changed: dict[int, HomeUse]) -> Homes:
        return replace(self, uses=tuple(changed.get(home, use) for home, use in enumerate(self.uses)))

    def _refuse_unless(self, makes_sense: bool, op: Withdraw | Lend | Load | Cycle) -> None:
        if not makes_sense:
            raise ValueError(
                f"{op} makes no sense for homes {self}; plan it with the ledger that this change belongs to"
            )


def _seated(layers: Sequence[int], seats: Sequence[int]) -> list[tuple[int, int]]:
    """Each layer with a seat, its own home first."""
    own = [layer for layer in layers if layer in seats]
    others = [layer for layer in layers if layer not in seats]
    free = [seat for seat in seats if seat not in own]
    return [(layer, layer) for layer in own] + list(zip(others, free, strict=False))
