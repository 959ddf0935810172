"""vLLM's other preemption: a victim's KV cache goes to host memory and comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.decision import Decision, Reason
from policies.memory.residency import Target
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """vLLM 0.7.3 with ``preemption_mode=swap``.

    Attributes:
        swap_space_bytes: host memory for swapped blocks of each model
            (vLLM's ``swap_space``, 4 GiB a GPU by default).
    """

    lends: ClassVar[bool] = False

    swap_space_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        if self.swap_space_bytes < 1:
            raise ValueError(f"policy.swap.swap_space_bytes={self.swap_space_bytes} bytes must be positive")

    @property
    def needs_requests(self) -> bool:
        """Never."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to every victim."""
        return "swap"

    def decide(self, view: MemoryView) -> Decision:
        """Keep every layer at home."""
        return Decision(targets=tuple(Target() for _ in view.models), reason=Reason.NO_LENDING)
