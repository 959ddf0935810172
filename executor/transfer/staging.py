"""Experts staged through two buffers, on a device: what is fetched ahead, and what waits for what.

In every step the whole offloaded region of each layer that has one is fetched into one of two buffers that take
turns, whatever the router chooses. The rules are those of the simulator (``sim/staging.py``)::

    a fetch waits for the fetch before it and for the last reader of its buffer
    a layer's experts wait for the layer's own first half and for their fetch

Fetches run ahead over the end of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from torch import Tensor

from executor.transfer.streams import Mark, Streams

N_BUFFERS = 2


class Staging(Generic[Mark]):
    """The staged regions of one model.

    Args:
        buffers: (N_BUFFERS, region_bytes) uint8, on the device.
        masters: by layer its groups in the order in which they leave, (region_bytes,) uint8, pinned host memory.
        group_bytes: of one group: a region is the first so many groups of its layer.
    """

    def __init__(
        self, buffers: Tensor, masters: Mapping[int, Tensor], group_bytes: int, streams: Streams[Mark]
    ) -> None:
        self._buffers, self._masters, self._group_bytes, self._streams = buffers, masters, group_bytes, streams
        self._regions: list[tuple[int, int]] = []  # (layer, groups), in the order of their visits
        self._n_visits = 0  # since the regions were set; visit v reads buffer (v + first) % 2
        self._first = 0
        self._holds: list[tuple[int, int]] = [(-1, 0)] * N_BUFFERS  # (layer, groups) fetched for a visit to come
        self._fetches: list[list[Mark]] = [[] for _ in range(N_BUFFERS)]  # for which the computation has not waited

    @property
    def is_idle(self) -> bool:
        """Whether nothing is staged."""
        return not self._regions

    @property
    def parity(self) -> int:
        """The buffer that the first region of the next step is read from."""
        return (self._n_visits + self._first) % N_BUFFERS

    def buffer_of(self, layer: int, parity: int) -> int:
        """The buffer that a layer with a region is read from in a step whose first is read from ``parity``."""
        layers = [each for each, _ in self._regions]
        return (layers.index(layer) + parity) % N_BUFFERS

    def set_regions(self, n_groups: Sequence[int]) -> None:
        """From now on so many groups of each layer are staged; between two steps.

        What was fetched for the regions to be read next stays good: only what it lacks is fetched.
        """
        self._regions = [(layer, n) for layer, n in enumerate(n_groups) if n]
        parity = self.parity
        self._n_visits = 0
        self._first = self._buffer_with_first(parity)
        for visit in range(N_BUFFERS if self._regions else 0):
            self._complete(visit)

    def enter(self, layer: int) -> None:
        """The experts of a layer run from now; the compute stream waits until what is staged of them is there."""
        if self._is_next(layer):
            self._quiet(self.parity)

    def leave(self, layer: int) -> None:
        """The experts of a layer have been asked of the compute stream: behind them their buffer is free."""
        if self._is_next(layer):
            buffer = self.parity
            self._n_visits += 1
            self._holds[buffer] = (-1, 0)
            self._fetch(self._n_visits + N_BUFFERS - 1, 0, self._streams.mark())

    def _is_next(self, layer: int) -> bool:
        return bool(self._regions) and self._regions[self._n_visits % len(self._regions)][0] == layer

    def _buffer_with_first(self, otherwise: int) -> int:
        """The buffer that the first region has been fetched into."""
        for buffer in (otherwise, N_BUFFERS - 1 - otherwise):
            if self._regions and self._holds[buffer][0] == self._regions[0][0]:
                return buffer
        return otherwise

    def _complete(self, visit: int) -> None:
        """Fetch what a buffer lacks for its next visit. Other content of it is overwritten once it has arrived."""
        buffer, layer = (visit + self._first) % N_BUFFERS, self._regions[visit % len(self._regions)][0]
        there, n_there = self._holds[buffer]
        if there != layer:
            self._quiet(buffer)
            n_there = 0
        self._fetch(visit, n_there, self._streams.mark())

    def _fetch(self, visit: int, n_there: int, after: Mark) -> None:
        """Fetch the region of a visit into its buffer, but for its first groups, which are there."""
        layer, n_groups = self._regions[visit % len(self._regions)]
        buffer = (visit + self._first) % N_BUFFERS
        self._holds[buffer] = (layer, n_groups)
        if n_there < n_groups:
            part = slice(n_there * self._group_bytes, n_groups * self._group_bytes)
            fetch = self._streams.fetch(self._buffers[buffer, part], self._masters[layer][part], after)
            self._fetches[buffer].append(fetch)

    def _quiet(self, buffer: int) -> None:
        fetches, self._fetches[buffer] = self._fetches[buffer], []
        for fetch in fetches:
            self._streams.hold(fetch)
