"""The side of every other rank: do what rank 0 tells, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from executor.lane import Forward
from executor.ranks.commands import (
    AwaitLoads,
    CarryOut,
    Command,
    DiscardBlocks,
    Ready,
    RestoreBlocks,
    RunStep,
    SaveBlocks,
    Stop,
    Vote,
)
from executor.ranks.lead import Moves
from executor.ranks.ranks import Follower
from executor.transfer.streams import Streams
from executor.transfer.swap import SwapSpace
from executor.vmm.driver import DriverError
from policies.errors import HbmOverdrawn


class Memory(Protocol):
    """A rank's memory."""

    @property
    def is_sound(self) -> bool:
        """Whether its state is known."""
        ...


class Served(Protocol):
    """Models on the device of a rank: dense ones or one with experts."""

    @property
    def memory(self) -> Memory:
        """Where they are."""
        ...

    @property
    def mover(self) -> Moves:
        """Changes it."""
        ...

    @property
    def streams(self) -> Streams[Any]:
        """Of its device."""
        ...

    @property
    def forwards(self) -> Sequence[Forward[Any]]:
        """How a step of each model runs."""
        ...

    @property
    def swaps(self) -> Sequence[SwapSpace[Any] | None]:
        """Where swapped KV of each waits."""
        ...


def follow(serving: Served, ranks: Follower) -> None:
    """Carry out commands until told to stop.

    Raises:
        EOFError: rank 0 is gone.
        DriverError: the device failed.
        RuntimeError: another rank is gone.
    """
    landed: set[tuple[int, int]] = set()
    while not isinstance(command := ranks.pipe.hear(), Stop):
        assert not isinstance(command, Vote), "a verdict without a vote"
        _carry_out(command, serving, ranks, landed)


def _carry_out(command: Command, serving: Served, ranks: Follower, landed: set[tuple[int, int]]) -> None:
    match command:
        case RunStep(lane, rows):
            serving.forwards[lane].run(rows)
            serving.streams.take_stalls()
        case CarryOut(ops):
            _change(serving, ops)
        case AwaitLoads(loads):
            while not landed.issuperset(loads):
                landed.update(serving.mover.landed())
            landed.difference_update(loads)
            ranks.pipe.say(Ready())
        case SaveBlocks(lane, blocks):
            _swap(serving, lane).save(blocks)
        case RestoreBlocks(lane, places, blocks):
            _swap(serving, lane).restore(places, blocks)
        case DiscardBlocks(lane, places):
            _swap(serving, lane).discard(places)
        case Stop():
            pass


def _change(serving: Served, ops: Any) -> None:
    """Take part in a change; that it was refused rank 0 has learnt from the vote."""
    try:
        serving.mover.carry_out(ops)
    except (HbmOverdrawn, DriverError, ValueError):
        if not serving.memory.is_sound:
            raise


def _swap(serving: Served, lane: int) -> SwapSpace[Any]:
    swap = serving.swaps[lane]
    assert swap is not None, f"lane {lane} never swaps"
    return swap
