"""Where each layer of a model lives, and how a decision wants it to be.

A model of n layers has n homes, one layer's pages each. A home holds the weights of a
resident layer, serves as a slot that the cycling layers share, is lent to a borrower's
KV cache, or is being loaded with a layer that returns::

    homes 0..n-1  =  resident  +  slots  +  lent  +  loading        (a partition)
    layers 0..n-1 =  resident  +  cycling

so the cycling layers are exactly as many as the homes that hold no weights. A layer
that is being loaded cycles until it has landed.

Read only; those of which many are made are not frozen, and have constructors that compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HostUse(Enum):
    """How KV cache in host memory takes part in a decode step."""

    EXCHANGE = "every step it comes into HBM layer by layer, and as much goes out"
    ATTEND = "the CPU attends to it"
    STREAM = "each layer's part is read over the link when the layer has come to it"


@dataclass(frozen=True, slots=True)
class HostKv:
    """KV cache of one model that lies in host memory beside its blocks in HBM.

    Args:
        n_units: how often ``unit_blocks`` blocks of ``unit_bytes`` in total.
        use: how it takes part in a decode step.
        unit_copy_ns: what the copies of a unit take in each direction of an exchange beside their bytes.

    Raises:
        ValueError: a number is not positive.
    """

    n_units: int
    unit_blocks: int
    unit_bytes: int
    use: HostUse
    unit_copy_ns: int = 0

    def __post_init__(self) -> None:
        for name in ("n_units", "unit_blocks", "unit_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"KV on the host: {name}={getattr(self, name)} must be at least 1; none is None")

    @property
    def n_bytes(self) -> int:
        """All of it."""
        return self.n_units * self.unit_bytes

    @property
    def copies_ns(self) -> int:
        """What the copies of an exchange take each way beside their bytes."""
        return self.n_units * self.unit_copy_ns


@dataclass(slots=True, init=False, order=True, unsafe_hash=True)
class Loan:
    """A home that serves as KV cache of model ``borrower``."""

    home: int
    borrower: int

    def __init__(self, home: int, borrower: int) -> None:
        self.home = home
        self.borrower = borrower


@dataclass(init=False, unsafe_hash=True)
class Residency:
    """Where every layer of one model is now.

    Args:
        homes: for each layer the home that holds it, ``None`` while it cycles.
        slots: homes through which the cycling layers take turns (MIRAGE's beta = m - alpha).
        loans: homes lent, in the order in which they were lent.
        loading: (layer, home) of layers on their way back.
        on_host: KV cache beside all this, in host memory.

    Attributes:
        cycling: layers that take turns in the slots, increasing; m of them.
        reshaped: targets with the same loans by slots and placement, as far as they were asked for.

    Raises:
        ValueError: the homes are not a partition, or layers cycle without a slot.
    """

    homes: tuple[int | None, ...]
    slots: tuple[int, ...]
    loans: tuple[Loan, ...]
    loading: tuple[tuple[int, int], ...]
    on_host: HostKv | None

    def __init__(
        self,
        homes: tuple[int | None, ...],
        slots: tuple[int, ...] = (),
        loans: tuple[Loan, ...] = (),
        loading: tuple[tuple[int, int], ...] = (),
        on_host: HostKv | None = None,
    ) -> None:
        self.homes = homes
        self.slots = slots
        self.loans = loans
        self.loading = loading
        self.on_host = on_host
        self.cycling = tuple([layer for layer, home in enumerate(homes) if home is None])
        self.reshaped: dict[tuple[int, str], Target] = {}
        self._wanted: Target | None = None
        used = [home for home in self.homes if home is not None]
        used += [*self.slots, *(loan.home for loan in self.loans), *(home for _, home in self.loading)]
        if sorted(used) != list(range(len(self.homes))):
            raise ValueError(f"homes {sorted(used)} are not each of 0..{len(self.homes) - 1} once")
        if self.cycling and not self.slots:
            raise ValueError(f"layers {self.cycling} cycle without a slot")

    @classmethod
    def all_resident(cls, n_layers: int) -> Residency:
        """Every layer at home."""
        return cls(homes=tuple(range(n_layers)))

    @property
    def n_layers(self) -> int:
        """Layers, and homes."""
        return len(self.homes)

    @property
    def n_slots(self) -> int:
        """Homes through which layers cycle: MIRAGE's beta."""
        return len(self.slots)

    @property
    def n_remapped(self) -> int:
        """Layers' worth of memory that other uses hold: MIRAGE's alpha."""
        return len(self.loans) + len(self.loading)

    @property
    def wanted(self) -> Target:
        """The target that this residency has reached or is on its way to."""
        wanted = self._wanted
        if wanted is None:
            wanted = self._wanted = self._reached()
        return wanted

    def _reached(self) -> Target:
        if not self.loans:
            return Target(on_host=self.on_host)
        returning = {layer for layer, _ in self.loading}
        cycling = tuple([layer for layer in self.cycling if layer not in returning])
        return Target(cycling=cycling, n_slots=self.n_slots, loans=self.loans, on_host=self.on_host)


@dataclass(slots=True, init=False, unsafe_hash=True)
class Target:
    """What a decision wants of one model: alpha loans, m = alpha + n_slots cycling layers, and KV on the host.

    Nothing lent means nothing cycles: the default.

    Raises:
        ValueError: cycling layers, slots and loans do not add up, or repeat.
    """

    cycling: tuple[int, ...]
    n_slots: int
    loans: tuple[Loan, ...]
    on_host: HostKv | None

    def __init__(
        self,
        cycling: tuple[int, ...] = (),
        n_slots: int = 0,
        loans: tuple[Loan, ...] = (),
        on_host: HostKv | None = None,
    ) -> None:
        self.cycling = cycling
        self.n_slots = n_slots
        self.loans = loans
        self.on_host = on_host
        if len(self.cycling) != self.n_slots + len(self.loans):
            raise ValueError(f"{len(self.cycling)} cycling layers, but {self.n_slots} slots + {len(self.loans)} loans")
        if self.loans and self.n_slots < 1:
            raise ValueError("a loan needs at least one slot")
        if not self.loans and self.n_slots:
            raise ValueError("slots without a loan hold memory for nothing")
        if list(self.cycling) != sorted(set(self.cycling)):
            raise ValueError(f"cycling layers {self.cycling} are not increasing")
        if len({loan.home for loan in self.loans}) != len(self.loans):
            raise ValueError("a home is lent twice")
