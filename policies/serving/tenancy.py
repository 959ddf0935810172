"""Which model runs next when several share one GPU in time."""

from __future__ import annotations

from collections.abc import Sequence
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

    def choose(self, current: int | None, turn_ns: int, ready: Sequence[bool]) -> int | None:
        """Choose who runs next.

        Args:
            current: the model whose turn it is, ``None`` at the start.
            turn_ns: how long its turn has lasted.
            ready: for each model whether it has work.

        Returns:
            The model, ``None`` if none has work.
        """
        if not any(ready):
            return None
        if current is not None and ready[current] and turn_ns < self.quantum_ns:
            return current
        n = len(ready)
        start = 0 if current is None else current + 1
        in_turn = [(start + i) % n for i in range(n) if ready[(start + i) % n]]
        if self.order == "priority":
            return max(in_turn, key=lambda model: self.priorities[model] or 0)
        return in_turn[0]
