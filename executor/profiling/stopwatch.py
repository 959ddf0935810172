"""Times what is asked of a device, by its own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import torch

from executor.transfer.streams import Streams
from traces.measured.device_tables import Part, Timing

HEAD_START_CYCLES = 6_000_000
"""Some 3 ms of a GPU, in which the host gets ahead of it: launches are then not what is timed."""

N_WARM_UP = 1
N_FEWEST, STEADY = 3, 0.01
"""So many repetitions suffice if they differ by no more than this share."""

BEYOND = 0.98
"""Of host times those up to this share count: what lies above is the machine's, not the loop's."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Durations on one device's compute stream.

    Args:
        n_repeats: how often everything is done at most, after ``N_WARM_UP`` times that do not count.
    """

    streams: Streams[Any]
    device: torch.device
    n_repeats: int

    def on_device(self, work: Callable[[], object]) -> list[int]:
        """Time work that is only asked for, as the device sees it: as if every launch were there in time."""

        def once() -> int:
            with self.streams.computing():
                self._head_start()
                begin = self.streams.mark()
                work()
                end = self.streams.mark()
            self.streams.wait(end)
            return self.streams.between_ns(begin, end)

        return self.repeated(once)

    def on_host(self, work: Callable[[], object]) -> list[int]:
        """Time how long the host takes to ask for work that the device does later."""

        def once() -> int:
            with self.streams.computing():
                self._head_start()
                began_ns = perf_counter_ns()
                work()
                ended_ns = perf_counter_ns()
            self.finish()
            return ended_ns - began_ns

        return self.repeated(once)

    def repeated(self, once: Callable[[], int]) -> list[int]:
        """Do something that tells how long it took until its repetitions agree, or ``n_repeats`` times."""
        for _ in range(N_WARM_UP):
            once()
        times_ns: list[int] = []
        while len(times_ns) < self.n_repeats:
            times_ns.append(once())
            if len(times_ns) >= N_FEWEST and max(times_ns) - min(times_ns) <= STEADY * min(times_ns):
                break
        return times_ns

    def finish(self) -> None:
        """Wait until everything on the compute stream is done."""
        with self.streams.computing():
            end = self.streams.mark()
        self.streams.wait(end)

    def _head_start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda._sleep(HEAD_START_CYCLES)  # pyright: ignore[reportPrivateUsage] - torch's own benchmarks use it


@dataclass(frozen=True, slots=True)
class Size:
    """Of what was timed: see ``Timing``."""

    n_seqs: int
    n_tokens: int
    context_tokens: int = 0
    n_experts: int = 0


def timing(part: Part, size: Size, times_ns: Sequence[int], *, n_parts: int = 1, is_mean: bool = False) -> Timing:
    """Sum up repetitions.

    Args:
        n_parts: equal parts that each of them consists of; the timing is of one.
        is_mean: their mean, without the slowest; else the median.
    """
    ordered = sorted(max(0, round(ns / n_parts)) for ns in times_ns)
    kept = ordered[: ceil(len(ordered) * BEYOND)]
    return Timing(
        part=part,
        n_seqs=size.n_seqs,
        n_tokens=size.n_tokens,
        context_tokens=size.context_tokens,
        n_experts=size.n_experts,
        ns=round(fmean(kept) if is_mean else median(ordered)),
        spread_ns=ordered[len(ordered) * 9 // 10] - ordered[len(ordered) // 10],
        n_samples=len(kept) if is_mean else len(ordered),
    )
