"""Ranks as processes of one machine: rank 0 is the one that starts the others, and ends them."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Thread

import torch

from executor.devices import World
from executor.mixture.plan import MoePlan
from executor.plan import Plan
from executor.ranks.commands import Failed, Ready
from executor.ranks.group import Group, TorchGroup
from executor.ranks.pipes import Following, Leading
from executor.ranks.ranks import Follower, Leader
from executor.ranks.sending import allow_sending
from executor.vmm.driver import DriverError
from policies.errors import DeviceFailed, HbmOverdrawn

START_WITHIN_S = 120.0
"""For a process that has to load torch and CUDA."""

END_WITHIN_S = 10.0
"""For a rank that was told to stop; then it is killed."""

EXIT_WITHIN_S = 1.0
"""For the exit code of a rank whose pipe is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a process is told of the rank that it is to be."""

    rank: int
    world: World
    plan: Plan | MoePlan
    store: Path


@contextmanager
def lead(world: World, plan: Plan | MoePlan) -> Generator[Leader]:
    """Start ranks 1, 2, ... and be rank 0; leaving waits for those that were told to stop, and ends the others.

    Raises:
        DeviceFailed: a rank did not come.
    """
    allow_sending()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes: list[SpawnProcess] = []
        ends: list[Connection] = []
        try:
            for rank in range(1, plan.n_ranks):
                end, other = context.Pipe()
                seat = Seat(rank=rank, world=world, plan=plan, store=Path(folder) / "store")
                process = context.Process(target=be_rank, args=(seat, other), name=f"rank {rank}", daemon=True)
                process.start()
                other.close()  # so that its end is known when the process ends
                processes.append(process)
                ends.append(end)
            pipes = Leading(ends, plan.rank_timeout_s, lambda rank: _fate(processes[rank - 1]))
            pipes.hear(Ready, START_WITHIN_S)
            group = _meet(pipes, Path(folder) / "store", plan, device_of(world, 0))
            with aborted_without([process.sentinel for process in processes], group):
                yield Leader(pipes, group)
            for process in processes:
                process.join(END_WITHIN_S)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
            for end in ends:
                end.close()


@contextmanager
def aborted_without(sentinels: Sequence[int], group: Group) -> Generator[None]:
    """Within it the end of any of these processes aborts a group.

    While models are loaded nobody looks after the others, and a device would wait for ever for a sum with one that is
    gone; so does the host that waits for the device.
    """
    ours, theirs = multiprocessing.Pipe()

    def watch() -> None:
        if theirs not in wait([*sentinels, theirs]):
            group.abort()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ours.close()
        watcher.join()
        theirs.close()


def be_rank(seat: Seat, end: Connection) -> None:
    """Be one of the other ranks, until rank 0 says stop or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; rank 0 decides what it means
    from executor.factory import open_served
    from executor.ranks.follow import follow

    pipe = Following(end)
    try:
        device = device_of(seat.world, seat.rank)
        if device != "cpu":
            torch.cuda.set_device(device)
        pipe.say(Ready())
        group = TorchGroup(seat.store, seat.rank, seat.plan.n_ranks, device, seat.plan.rank_timeout_s)
        ranks = Follower(seat.rank, seat.plan.n_ranks, pipe, group)
        with open_served(seat.world, seat.plan, ranks) as serving:
            try:
                follow(serving, ranks)
            except BaseException:
                group.abort()  # else closing would wait for a device that waits for a rank that is gone
                raise
    except EOFError:
        pass  # rank 0 is gone, and with it whoever would want to know
    except (ValueError, HbmOverdrawn, DeviceFailed, DriverError, RuntimeError) as failure:  # torch's are RuntimeErrors
        with suppress(EOFError):
            pipe.say(Failed(str(failure).partition("\n")[0]))
        raise SystemExit(1) from failure


def device_of(world: World, rank: int) -> str:
    """Torch's name of a rank's device."""
    return "cpu" if world == "memfd" else f"cuda:{rank}"


def _meet(pipes: Leading, store: Path, plan: Plan | MoePlan, device: str) -> TorchGroup:
    try:
        return TorchGroup(store, 0, plan.n_ranks, device, plan.rank_timeout_s)
    except RuntimeError as failure:
        pipes.look()
        raise DeviceFailed(f"the ranks did not meet: {str(failure).splitlines()[0]}") from failure


def _fate(process: SpawnProcess) -> str:
    process.join(EXIT_WITHIN_S)
    return "is gone" if process.exitcode is None else f"has ended with code {process.exitcode}"
