"""Decode steps that use KV cache in host memory, as time.

Of each way in which such a cache takes part, what it costs at best:

- **exchange** (Pie): every step all of it comes into HBM layer by layer, and as much goes out to make room, behind
  the computation. Both directions run at once, so each has half of the joint bandwidth; a place in HBM is filled
  again once what was there has gone out. Over a step that is ``max(step, bytes / (joint / 2) + copies)``
  (``tests/sim/test_host_kv.py`` plays the copies layer by layer).
- **attend** (NEO): the CPU attends to it while the GPU does the rest, ideally overlapped: ``max(GPU, CPU)``.
- **stream** (FlexGen without its schedule): a layer's part is read when the layer has come to it; nothing overlaps.

A step of prompts alone is as long as ever: nobody attends to what lies on the host.
"""

from __future__ import annotations

from dataclasses import replace

from policies.memory.residency import HostKv, HostUse
from policies.remap.host_kv import attend_ns, exchange_ns
from policies.types import HardwareProfile, ModelShape, Work
from sim.compute.base import ComputeModel
from sim.pipeline import Pipeline

Steps = tuple[list[int], list[int], list[int], list[int]]
"""Of each step: end, device time of its layers, stall, rest."""


class HostKvCost:
    """What the KV cache of one model in host memory costs its decode steps.

    Attributes:
        held: what lies there now.
    """

    def __init__(self, shape: ModelShape, hardware: HardwareProfile) -> None:
        self.held: HostKv | None = None
        self._shape = shape
        self._hardware = hardware

    def steps(
        self,
        pipeline: Pipeline,
        compute: ComputeModel,
        work: Work,
        n_steps: int,
        start_ns: int,
        stop_ns: int,
        host_ns: int,
    ) -> Steps:
        """Run decode steps one after the other, up to the first that ends at or after ``stop_ns``.

        Args:
            host_ns: time of the host before each.
        """
        assert self.held is not None
        head_ns = compute.head_ns(work)
        ends_ns, computes_ns, stalls_ns = list[int](), list[int](), list[int]()
        now_ns = start_ns
        for nth in range(n_steps):
            layer_ns = compute.layer_ns(self._on_device(work, nth))
            end_ns, stall_ns = pipeline.step(now_ns, layer_ns, host_ns, head_ns)
            more_ns = self._stall_ns(end_ns - now_ns, self._shape.n_layers * layer_ns + stall_ns)
            now_ns = end_ns + more_ns
            ends_ns.append(now_ns)
            computes_ns.append(self._shape.n_layers * layer_ns)
            stalls_ns.append(stall_ns + more_ns)
            if now_ns >= stop_ns:
                break
        return ends_ns, computes_ns, stalls_ns, [host_ns + head_ns] * len(ends_ns)

    def _on_device(self, work: Work, nth: int) -> Work:
        """What the GPU computes in the nth repetition: it does not attend to what the CPU attends to."""
        assert self.held is not None
        n_contexts = work.decode_context_tokens + nth * work.n_decode_seqs
        if self.held.use is HostUse.ATTEND:
            n_contexts = max(0, n_contexts - self.held.n_bytes // self._shape.kv_bytes_per_token)
        return replace(work, decode_context_tokens=n_contexts)

    def _stall_ns(self, step_ns: int, layers_ns: int) -> int:
        """How much longer a step takes.

        Args:
            step_ns: without KV on the host.
            layers_ns: of that, what the layers took.
        """
        assert self.held is not None
        n_bytes, hardware = self.held.n_bytes, self._hardware
        match self.held.use:
            case HostUse.EXCHANGE:
                return max(0, exchange_ns(n_bytes, hardware, self.held.copies_ns) - step_ns)
            case HostUse.ATTEND:
                return max(0, attend_ns(n_bytes, self._shape.n_layers, hardware) - layers_ns)
            case HostUse.STREAM:
                return hardware.link.fetch_ns(n_bytes)
