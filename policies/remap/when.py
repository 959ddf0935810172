"""When layers are lent and when they come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.view import MemoryView, RangeView


@dataclass(slots=True, init=False, unsafe_hash=True)
class Memory:
    """What MIRAGE remembers between decisions. Read only; not frozen, and with a constructor that compiles.

    Attributes:
        lent_at_step, n_lent: layers that were lent in that step.
        eased_since: step at which a range was first seen idle, ``None`` while none is.
    """

    lent_at_step: int | None
    n_lent: int
    eased_since: int | None

    def __init__(self, lent_at_step: int | None = None, n_lent: int = 0, eased_since: int | None = None) -> None:
        self.lent_at_step = lent_at_step
        self.n_lent = n_lent
        self.eased_since = eased_since

    def may_lend(self, step: int, layers_per_step: int) -> bool:
        """One layer a step: the paper's "per-token granularity" (section 5.1)."""
        return self.lent_at_step != step or self.n_lent < layers_per_step

    def lent(self, step: int) -> Memory:
        """One more layer was lent; a shortage also ends any ease."""
        n_before = self.n_lent if self.lent_at_step == step else 0
        return Memory(lent_at_step=step, n_lent=n_before + 1)

    def eased(self, step: int) -> Memory:
        """A range is idle; remember since when."""
        return self if self.eased_since is not None else Memory(self.lent_at_step, self.n_lent, step)

    def pressed(self) -> Memory:
        """No range can be spared."""
        return self if self.eased_since is None else Memory(self.lent_at_step, self.n_lent)


def idle_ranges(view: MemoryView) -> Sequence[RangeView]:
    """Lent ranges none of whose blocks is referenced: those that may go back.

    Source: MIRAGE section 7.6.1, "dynamic reversion".
    """
    return [lent for lent in view.ranges if not lent.n_referenced]


def can_spare(view: MemoryView, lent: RangeView, margin: float) -> bool:
    """Whether the borrower keeps ``margin`` of its blocks free without this range (ours: against flapping)."""
    borrower = view.models[lent.borrower]
    return borrower.n_free_blocks - lent.n_blocks >= margin * borrower.n_blocks
