"""Experts staged through two buffers while a model computes, as a recurrence in integer nanoseconds.

In every step each layer's whole offloaded region is copied into one of two buffers that take turns, whatever
the router chooses. A copy starts when the link is free and the layer that read the buffer before is done; a
layer's grouped GEMMs start when their part of the region is there::

    link     | copy 1          | copy 2          | copy 3 ...       copy i + 2 behind layer i
    layer        mixer, reduce | gate-up | down | reduce | mixer ...

The link is counted as a fluid of byte-nanoseconds, of which a rate in bytes/s moves as many a nanosecond, so
nothing is lost to rounding but the last nanosecond of a wait. An all-reduce that goes over the same link takes
its fair part of it, and copies get the rest. Computation beside a copy takes longer by a measured share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.types import NS_PER_S
from sim.compute.moe import LayerTimes
from sim.link import MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLink:
    """The link of one rank as staging sees it.

    Attributes:
        bytes_per_s: what copies to this rank have of it.
        reduce_bytes_per_s: what an all-reduce asks of it, 0 if it goes another way.
        splits_regions: the gate-up GEMM starts before the down projections have arrived.
        slowdown_ppm: how much longer computation takes beside a copy in flight, in millionths.

    Raises:
        ValueError: a rate is out of range.
    """

    bytes_per_s: int
    reduce_bytes_per_s: int = 0
    splits_regions: bool = True
    slowdown_ppm: int = 0

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1 or self.reduce_bytes_per_s < 0:
            raise ValueError(f"staging: {self.bytes_per_s} and {self.reduce_bytes_per_s} bytes/s are out of range")
        if self.slowdown_ppm < 0:
            raise ValueError(f"staging: slowdown_ppm={self.slowdown_ppm} must be >= 0")

    @property
    def rate_beside_reduce(self) -> int:
        """Bytes/s left to copies while an all-reduce runs."""
        return self.bytes_per_s - min(self.reduce_bytes_per_s, self.bytes_per_s // 2)

    def reduce_ns(self, alone_ns: int) -> int:
        """Duration of an all-reduce beside copies: it has half of the link at least."""
        most = self.bytes_per_s // 2
        if self.reduce_bytes_per_s <= most:
            return alone_ns
        return -(-alone_ns * self.reduce_bytes_per_s // most)


@dataclass(frozen=True, slots=True)
class _Region:
    layer: int
    gate_up: int
    both: int


class StagedExperts:
    """The layers of one rank of a model, some of whose experts are staged.

    Args:
        n_dense_layers: layers before the first with experts.
        gate_up_bytes, down_bytes: of an expert shard.
        link: over which they come.
    """

    def __init__(self, n_dense_layers: int, gate_up_bytes: int, down_bytes: int, link: StagingLink) -> None:
        self._n_dense_layers = n_dense_layers
        self._shard = gate_up_bytes * NS_PER_S, (gate_up_bytes + down_bytes) * NS_PER_S
        self._link = link
        self._regions: list[_Region] = []
        self._next = 0  # region to be read next
        self._there = [0, 0]  # byte-ns that have arrived of that one and of the one behind it
        self._moved = 0  # byte-ns that the link could have moved since that was last worked out
        self._clock_ns = 0

    def set_regions(self, shards_by_layer: Sequence[int]) -> None:
        """From now on so many shards of each layer with experts are staged; call it between two steps.

        What has arrived of the regions to be read next stays good.
        """
        self._arrive()
        before = self._ahead()
        gate_up, both = self._shard
        self._regions = [
            _Region(self._n_dense_layers + layer, n * gate_up, n * both) for layer, n in enumerate(shards_by_layer) if n
        ]
        self._next = 0
        self._there = [0, 0]
        for nth, region in enumerate(self._ahead()):
            there = next((units for old, units in before.items() if old.layer == region.layer), 0)
            self._there[nth] = min(there, region.both)

    def steps(
        self, start_ns: int, steps: Sequence[Sequence[LayerTimes]], before_ns: int, after_ns: int, stop_ns: int
    ) -> tuple[list[int], list[int]]:
        """Run one step after the other, up to the first that ends at or after ``stop_ns``.

        Args:
            start_ns: when the first starts, not before the end of the last one.
            steps: for each the times of every layer.
            before_ns: host time before the first layer of each.
            after_ns: device time behind the last layer of each.

        Returns:
            For each step when it ends, and for how long of it layers waited for experts.
        """
        ends_ns, stalls_ns, now_ns = list[int](), list[int](), start_ns
        for layers in steps:
            now_ns, stall_ns = self.step(now_ns, layers, before_ns, after_ns)
            ends_ns.append(now_ns)
            stalls_ns.append(stall_ns)
            if now_ns >= stop_ns:
                break
        return ends_ns, stalls_ns

    def step(self, start_ns: int, layers: Sequence[LayerTimes], before_ns: int, after_ns: int) -> tuple[int, int]:
        """Run one step; when it ends, and for how long of it layers waited for experts."""
        if not self._regions:
            self._clock_ns = start_ns + before_ns + sum(times.all_ns for times in layers) + after_ns
            return self._clock_ns, 0
        self._pass(start_ns - self._clock_ns + before_ns)
        stall_ns = 0
        for layer, times in enumerate(layers):
            self._compute(times.mixer_ns)
            self._reduce(times.reduce_ns)
            region = self._regions[self._next]
            if region.layer == layer:
                stall_ns += self._wait(region.gate_up if self._link.splits_regions else region.both)
                self._compute(times.gate_up_ns)
                stall_ns += self._wait(region.both)
                self._compute(times.down_ns)
                self._arrive()
                self._next = (self._next + 1) % len(self._regions)
                self._there = [self._there[1], 0]
            else:
                self._compute(times.gate_up_ns + times.down_ns)
            self._reduce(times.reduce_ns)
        self._pass(after_ns)
        return self._clock_ns, stall_ns

    def _ahead(self) -> dict[_Region, int]:
        """The regions to be read next, those whose turn it is for a buffer, and what has arrived of them."""
        n_regions = len(self._regions)
        nexts = (self._regions[(self._next + nth) % n_regions] for nth in range(min(2, n_regions)))
        return dict(zip(nexts, self._there, strict=False))

    def _compute(self, work_ns: int) -> None:
        """Let computation pass that lasts so long beside nothing."""
        slowdown_ppm = self._link.slowdown_ppm
        if slowdown_ppm and work_ns:
            copying_ns = -(-self._missing() // self._link.bytes_per_s)
            beside_ns = min(work_ns, copying_ns * MILLION // (MILLION + slowdown_ppm))
            work_ns += beside_ns * slowdown_ppm // MILLION
        self._pass(work_ns)

    def _reduce(self, alone_ns: int) -> None:
        duration_ns = self._link.reduce_ns(alone_ns)
        if duration_ns != alone_ns and not self._is_copying():
            duration_ns = alone_ns
        self._clock_ns += duration_ns
        self._moved += duration_ns * self._link.rate_beside_reduce

    def _is_copying(self) -> bool:
        return self._missing() > 0

    def _missing(self) -> int:
        """Byte-ns of the regions whose turn it is for a buffer that have not arrived."""
        self._arrive()
        both = sum(self._regions[(self._next + nth) % len(self._regions)].both for nth in (0, 1))
        return both - sum(self._there)

    def _pass(self, duration_ns: int) -> None:
        self._clock_ns += duration_ns
        self._moved += duration_ns * self._link.bytes_per_s

    def _wait(self, needed: int) -> int:
        """Wait until so much of the region to be read has arrived; for how long."""
        self._arrive()
        missing = needed - self._there[0]
        if missing <= 0:
            return 0
        wait_ns = -(-missing // self._link.bytes_per_s)
        self._pass(wait_ns)
        return wait_ns

    def _arrive(self) -> None:
        """Let arrive what the link has moved, first of the region to be read next, then of the one behind it."""
        moved, self._moved = self._moved, 0
        if moved and self._regions:
            there, regions = self._there, self._regions
            first = min(there[0] + moved, regions[self._next].both)
            moved -= first - there[0]
            there[0] = first
            there[1] = min(there[1] + moved, regions[(self._next + 1) % len(regions)].both)
