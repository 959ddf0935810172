"""Streaming on demand: the naive lower bound of every system that keeps KV cache in host memory.

Source: what FlexGen (Sheng et al., arXiv 2303.06865) does without its overlapping schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.decision import Decision
from policies.host_growth import HostGrowth
from policies.memory.residency import HostUse
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """Extend the KV cache into host memory whenever blocks are short; every step reads all of it over the link.

    Nothing overlaps and nothing bounds it but the host's memory: no request is ever preempted before that, and every
    decode step is longer by the transfer. FlexGen itself overlaps transfers with computation and works offline on
    large batches; this is not a measure of FlexGen, only of what streaming costs without a plan.
    """

    lends: ClassVar[bool] = True

    growth: HostGrowth = field(default_factory=HostGrowth)

    @property
    def needs_requests(self) -> bool:
        """Never."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to victims once host memory is full."""
        return "recompute"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Always."""
        return True

    def decide(self, view: MemoryView) -> Decision:
        """Grow while short, shrink when HBM has room."""
        return self.growth.decide(view, HostUse.STREAM, lambda _model, _held: True)
