"""vLLM as it is: a preempted request loses its KV cache and is computed again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.decision import Decision, Reason
from policies.memory.residency import Target
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The baseline of the MIRAGE paper (section 7.1: vLLM 0.7.3). It has no settings.

    With several models it is the static partition: each has the share of HBM that the mix gives it, for good.
    """

    lends: ClassVar[bool] = False

    @property
    def needs_requests(self) -> bool:
        """Never."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to every victim."""
        return "recompute"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Never."""
        return False

    def decide(self, view: MemoryView) -> Decision:
        """Keep every layer at home."""
        return Decision(targets=tuple(Target() for _ in view.models), reason=Reason.NO_LENDING)
