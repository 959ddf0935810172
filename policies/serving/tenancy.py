"""How several models share one GPU in time: the settings (``turns`` chooses by them)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.types import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalSharing:
    """One model at a time, in turns of a quantum; never idle while a model has work.

    A turn ends with the first step that ends at or after its quantum, if another model
    has work, or when the model has none. ``round_robin`` goes on to the next model with
    work in their order; ``priority`` takes the one with the highest priority (ties: the
    next in order). The paper leaves quantum and order open (docs/decisions.md).

    Raises:
        ValueError: the quantum is not positive, or priorities are missing.
    """

    quantum_s: float
    order: Literal["round_robin", "priority"] = "round_robin"
    priorities: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.quantum_s > 0:
            raise ValueError(f"tenancy: quantum_s={self.quantum_s} s must be positive")
        if self.order == "priority" and (not self.priorities or None in self.priorities):
            raise ValueError("tenancy: order=priority needs a priority for every model of the mix")

    @property
    def quantum_ns(self) -> int:
        """The quantum as the engine counts it."""
        return round(self.quantum_s * NS_PER_S)
