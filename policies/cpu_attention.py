"""CPU attention, as NEO does it: part of the KV cache lies in host memory and the CPU attends to it.

Source: Jiang et al., NEO: Saving GPU Memory Crisis with CPU Offloading for Online LLM Inference (arXiv 2411.01142);
MIRAGE section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.decision import Decision
from policies.host_growth import HostGrowth
from policies.memory.residency import HostKv, HostUse
from policies.remap.host_kv import attend_ns
from policies.serving.scheduler import Preemption
from policies.view import MemoryView, ModelView


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAttention:
    """Hold KV cache on the host as long as the CPU attends to it in about the time that the GPU takes for the rest.

    The CPU is bound by reading host memory (``hardware.cpu``) and pays the way of queries and outputs in every layer.

    Idealised: perfect overlap of CPU and GPU (NEO splits the batch in two for that, and so reads the weights twice);
    blocks, not whole requests, lie on the host; prefills write there for nothing.

    Attributes:
        max_slowdown: share by which the CPU may take longer than the layers on the GPU; NEO balances both (0).
    """

    lends: ClassVar[bool] = True

    max_slowdown: float = 0.0
    growth: HostGrowth = field(default_factory=HostGrowth)

    def __post_init__(self) -> None:
        if self.max_slowdown < 0:
            raise ValueError(f"policy.cpu_attention.max_slowdown={self.max_slowdown} must not be negative")

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
        """Grow while short and balanced, shrink when HBM has room."""

        def is_balanced(model: ModelView, held: HostKv) -> bool:
            layers_ns = model.weights_ns if model.decode_ns is None else model.decode_ns
            cpu_ns = attend_ns(held.n_bytes, model.shape.n_layers, view.hardware)
            return cpu_ns <= layers_ns * (1 + self.max_slowdown)

        return self.growth.decide(view, HostUse.ATTEND, is_balanced)
