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
    """vLLM 0.7.3 with ``preemption_mode=swap``; how much host memory there is, serving says."""

    lends: ClassVar[bool] = False

    @property
    def needs_requests(self) -> bool:
        """Never."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to every victim."""
        return "swap"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Never."""
        return False

    def decide(self, view: MemoryView) -> Decision:
        """Keep every layer at home."""
        return Decision(targets=tuple(Target() for _ in view.models), reason=Reason.NO_LENDING)
