"""Rank 0's side: whatever it asks of its own device, the others are told first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, Protocol

import torch

from executor.clock import POLL_S
from executor.forward import Passed
from executor.lane import Forward
from executor.models.step import Row
from executor.ranks.commands import AwaitLoads, CarryOut, DiscardBlocks, Ready, RestoreBlocks, RunStep, SaveBlocks
from executor.ranks.pipes import Patience
from executor.ranks.ranks import Leader
from executor.transfer.cuda import CudaMark, CudaStreams
from executor.transfer.streams import HostStreams, Mark, Streams
from executor.transfer.swap import SwapSpace
from policies.memory.ops import Op


class LedForward(Generic[Mark]):
    """Runs a step on every rank."""

    def __init__(self, lane: int, inner: Forward[Mark], ranks: Leader) -> None:
        self._lane, self._inner, self._ranks = lane, inner, ranks

    def run(self, rows: Sequence[Row]) -> Passed[Mark]:
        """Ask all devices for a step of these rows."""
        self._ranks.pipes.tell(RunStep(self._lane, tuple(rows)))
        return self._inner.run(rows)


class Moves(Protocol):
    """Changes the memory of one rank."""

    def carry_out(self, ops: Sequence[Op]) -> None:
        """Apply ops, all of them or none."""
        ...

    def landed(self) -> list[tuple[int, int]]:
        """(model, layer) of loads that are complete."""
        ...


class LedMover:
    """Changes the memory of every rank."""

    def __init__(self, inner: Moves, ranks: Leader) -> None:
        self._inner, self._ranks = inner, ranks

    def carry_out(self, ops: Sequence[Op]) -> None:
        """Apply ops to the memories, all of them or none, on all ranks or on none.

        Raises:
            HbmOverdrawn, DriverError, ValueError: as ``VotedMemory.apply``; nothing was changed.
        """
        self._ranks.pipes.tell(CarryOut(tuple(ops)))
        self._inner.carry_out(ops)

    def landed(self) -> list[tuple[int, int]]:
        """(model, layer) of loads that are complete on every rank and were not told before, in order."""
        loads = self._inner.landed()
        if loads:
            self._ranks.pipes.tell(AwaitLoads(tuple(loads)))
            self._ranks.pipes.hear(Ready)
        return loads


class LedSwapSpace(SwapSpace[Mark]):
    """Keeps swapped KV on every rank: the same blocks in the same places."""

    def __init__(self, lane: int, kv: torch.Tensor, host: torch.Tensor, streams: Any, ranks: Leader) -> None:
        super().__init__(kv, host, streams)
        self._lane, self._ranks = lane, ranks

    def save(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks to host memory; where they are."""
        self._ranks.pipes.tell(SaveBlocks(self._lane, tuple(blocks)))
        return super().save(blocks)

    def restore(self, places: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy back into blocks, and free the places."""
        self._ranks.pipes.tell(RestoreBlocks(self._lane, tuple(places), tuple(blocks)))
        self._copy_back(places, blocks)

    def discard(self, places: Sequence[int]) -> None:
        """Free places whose content nobody will want."""
        self._ranks.pipes.tell(DiscardBlocks(self._lane, tuple(places)))
        super().discard(places)


class WatchedStreams(CudaStreams):
    """Streams of rank 0: while it waits for its device it looks after the ranks for which the device waits."""

    def __init__(self, device: torch.device, ranks: Leader) -> None:
        super().__init__(device)
        self._patience = Patience(ranks.pipes)

    def is_reached(self, mark: CudaMark) -> bool:
        """Ask the events.

        Raises:
            DeviceFailed: a rank is gone, or does not come.
        """
        is_reached = super().is_reached(mark)
        if is_reached:
            self._patience.rewarded()
        else:
            self._patience.tried()
        return is_reached

    def wait(self, mark: CudaMark) -> None:
        """Wait for the events; the driver would wait for ever for a rank that is gone."""
        while not self.is_reached(mark):
            time.sleep(POLL_S)


def streams_for(device: torch.device, leader: Leader | None) -> Streams[Any]:
    """The streams of a device; of rank 0's, where it leads others."""
    if device.type != "cuda":
        return HostStreams()
    return WatchedStreams(device, leader) if leader else CudaStreams(device)
