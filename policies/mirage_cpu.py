"""MIRAGE that falls back to CPU attention once it may lend no more layers.

Source: MIRAGE section 8 (combining both is left to future work there; how is ours).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from policies.cpu_attention import CpuAttention
from policies.decision import Decision, Reason
from policies.mirage import Mirage
from policies.serving.scheduler import Preemption
from policies.view import Ask, MemoryView

EXHAUSTED = frozenset({Reason.AT_CAP, Reason.WOULD_STALL, Reason.LINK_FULL})
"""Answers of MIRAGE after which the CPU is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """What each of the two remembers."""

    mirage: object = None
    cpu: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirageCpu:
    """Lend layers as MIRAGE does; at its cap hold KV cache on the host for the CPU, and let that go first."""

    lends: ClassVar[bool] = True

    mirage: Mirage = field(default_factory=Mirage)
    cpu: CpuAttention = field(default_factory=CpuAttention)

    @property
    def needs_requests(self) -> bool:
        """As MIRAGE does."""
        return self.mirage.needs_requests

    @property
    def preemption(self) -> Preemption:
        """As MIRAGE does."""
        return self.mirage.preemption

    @property
    def keeps_kv_on_host(self) -> bool:
        """Always."""
        return True

    def decide(self, view: MemoryView) -> Decision:
        """Ask the one whose turn it is: MIRAGE to lend, the CPU when MIRAGE cannot, the CPU first to let go."""
        memories = view.policy_memory if isinstance(view.policy_memory, Memories) else Memories()
        if view.ask in (Ask.EASE, Ask.IDLE) and any(lent.is_on_host for lent in view.ranges):
            eased = self._ask_cpu(view, memories)
            if eased.reason is not Reason.IN_USE:
                return eased
        decision = self._ask_mirage(view, memories)
        is_short = view.ask in (Ask.RUNNING_SHORT, Ask.WAITING_SHORT)
        if is_short and decision.reason in EXHAUSTED:
            assert isinstance(decision.policy_memory, Memories)
            return self._ask_cpu(view, decision.policy_memory)
        return decision

    def _ask_mirage(self, view: MemoryView, memories: Memories) -> Decision:
        """MIRAGE sees only what is lent, and leaves what lies on the host."""
        lent = tuple(each for each in view.ranges if not each.is_on_host)
        decision = self.mirage.decide(replace(view, ranges=lent, policy_memory=memories.mirage))
        targets = tuple(
            replace(target, on_host=model.residency.on_host)
            for target, model in zip(decision.targets, view.models, strict=True)
        )
        return replace(decision, targets=targets, policy_memory=replace(memories, mirage=decision.policy_memory))

    def _ask_cpu(self, view: MemoryView, memories: Memories) -> Decision:
        decision = self.cpu.decide(replace(view, policy_memory=memories.cpu))
        return replace(decision, policy_memory=replace(memories, cpu=decision.policy_memory))
