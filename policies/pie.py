"""Pie: KV cache that is swapped layer by layer behind the computation.

Source: Xu et al., Pie: Pooling CPU Memory for LLM Inference (arXiv 2411.09317); MIRAGE section 7.4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.decision import Decision
from policies.host_growth import HostGrowth
from policies.memory.residency import HostKv, HostUse
from policies.remap.host_kv import exchange_ns
from policies.serving.scheduler import Preemption
from policies.view import MemoryView, ModelView

COPIES_PER_LAYER = 2
"""Of a block: its keys and its values, which vLLM 0.7.3 keeps apart (``attention/ops/paged_attn.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pie:
    """Extend a model's KV cache into host memory as long as its decode steps are not slowed.

    With S bytes there, every decode step moves S out and S in, both at once, at half of the joint bandwidth each;
    a place in HBM is used again only after what was there has gone out. So S <= computation * joint / 2
    ("performance-transparent swapping"; copies follow the layers, so the host's part of a step hides none), and S
    follows the load ("adaptive expansion").

    What it cannot do: take memory of models that are inactive. Their KV cache and weights stay where they are, so
    that under a mix of models each extends only itself.

    Idealised: perfect prefetch (a step is the longer of computation and traffic), prefills write to the host for
    nothing, all that is held counts as traffic. Published figures beyond the abstract were not at hand.

    Attributes:
        copy_ns: what a copy takes beside its bytes. 0: a layer's blocks cross as if they were one piece. Else they
            cross block by block, keys and values apart, as vLLM 0.7.3's ``swap_blocks`` copies them.
    """

    lends: ClassVar[bool] = True

    growth: HostGrowth = field(default_factory=HostGrowth)
    copy_ns: int = 0

    def __post_init__(self) -> None:
        if self.copy_ns < 0:
            raise ValueError(f"policy.pie.copy_ns={self.copy_ns} ns must not be negative")

    @property
    def needs_requests(self) -> bool:
        """Never."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to victims once it may not grow."""
        return "recompute"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Always."""
        return True

    def decide(self, view: MemoryView) -> Decision:
        """Grow while short and hidden, shrink when HBM has room."""

        def is_hidden(model: ModelView, held: HostKv) -> bool:
            layers_ns = model.weights_ns if model.decode_ns is None else model.decode_ns
            return exchange_ns(held.n_bytes, view.hardware, held.copies_ns) <= layers_ns

        block_copy_ns = COPIES_PER_LAYER * view.models[view.asker].shape.n_layers * self.copy_ns
        return self.growth.decide(view, HostUse.EXCHANGE, is_hidden, block_copy_ns)
