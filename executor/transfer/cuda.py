"""Streams of a GPU: torch's streams and events."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

N_LINKS = 2
"""Streams over which a fetch is spread: PCIe 5 gives one 48-49 GB/s, two 55 (measured on an H200, driver 580)."""

CudaMark = tuple[torch.cuda.Event, ...]
"""Events that all have to be reached."""


class CudaStreams:
    """One compute stream, two that fetch side by side, one that saves."""

    def __init__(self, device: torch.device) -> None:
        self.compute = torch.cuda.Stream(device)
        self._links = tuple(torch.cuda.Stream(device) for _ in range(N_LINKS))
        self._saving = torch.cuda.Stream(device)
        self._stalls: list[tuple[CudaMark, CudaMark]] = []

    def computing(self) -> AbstractContextManager[object]:
        """Make the compute stream torch's current one."""
        return torch.cuda.stream(self.compute)

    def mark(self) -> CudaMark:
        """Record an event behind what was asked so far."""
        return (_recorded(self.compute, times=True),)

    def fetch(self, to: Tensor, source: Tensor, after: CudaMark | None = None) -> CudaMark:
        """Copy a part of the bytes over each link."""
        parts = zip(self._links, to.chunk(N_LINKS), source.chunk(N_LINKS), strict=False)
        return tuple(_copied(link, part, source_part, after) for link, part, source_part in parts)

    def save(self, to: Tensor, source: Tensor, after: CudaMark | None = None) -> CudaMark:
        """Copy on the stream for this direction."""
        return (_copied(self._saving, to, source, after),)

    def hold(self, until: CudaMark) -> None:
        """Make the compute stream wait, between two events that time it."""
        before = self.mark()
        for event in until:
            self.compute.wait_event(event)
        self._stalls.append((before, self.mark()))

    def take_stalls(self) -> list[tuple[CudaMark, CudaMark]]:
        """Events around each ``hold``."""
        stalls, self._stalls = self._stalls, []
        return stalls

    def is_reached(self, mark: CudaMark) -> bool:
        """Ask the events."""
        return all(event.query() for event in mark)

    def wait(self, mark: CudaMark) -> None:
        """Wait for the events."""
        for event in mark:
            event.synchronize()

    def between_ns(self, first: CudaMark, second: CudaMark) -> int:
        """Elapsed time of the events, which count in milliseconds."""
        return round(first[0].elapsed_time(second[0]) * 1_000_000)


def _copied(stream: torch.cuda.Stream, to: Tensor, source: Tensor, after: CudaMark | None) -> torch.cuda.Event:
    for event in after or ():
        stream.wait_event(event)
    with torch.cuda.stream(stream):
        to.copy_(source, non_blocking=True)
    return _recorded(stream)


def _recorded(stream: torch.cuda.Stream, *, times: bool = False) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=times)
    event.record(stream)
    return event
