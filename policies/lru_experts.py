"""Experts fetched when the router asks for them: what VAMP's staging of whole regions is compared with.

A fixed share of every layer's experts never has a place in HBM; the others are those used last. What the
router chooses beyond them is fetched after the routing, while the layer waits.

Source: VAMP section VII-B, which argues that with most experts in use in every step this stalls every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.decision import Decision, Reason
from policies.memory.experts import OffloadCap
from policies.memory.residency import Target
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class LruExperts:
    """The share of a layer's experts whose memory serves as KV cache from the start, in the terms of ``Vamp``."""

    lends: ClassVar[bool] = False

    max_offloaded_fraction: float = 0.15
    multiple_shards: int = 4

    def __post_init__(self) -> None:
        _ = self.cap  # refuses what is out of range

    @property
    def cap(self) -> OffloadCap:
        """How many experts have no place."""
        return OffloadCap(fraction=self.max_offloaded_fraction, multiple_shards=self.multiple_shards)

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
        """Leave everything as it is."""
        return Decision(targets=tuple(Target() for _ in view.models), reason=Reason.NO_LENDING)
