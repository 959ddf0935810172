"""The real world, made from a configuration: a device with models on it, given back at the end."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager

import torch

from executor.backend import ExecutorBackend
from executor.clock import HostClock
from executor.devices import (
    World,
    open_driver,
    open_peer,
    refuse_too_little_host_memory,
    refuse_too_little_peer_memory,
)
from executor.lane import Watch
from executor.plan import Plan
from executor.ranks.processes import lead
from executor.ranks.ranks import Ranks
from executor.serving import Serving, open_serving
from executor.vmm.driver import Driver, DriverError
from policies.errors import DeviceFailed, HbmOverdrawn
from policies.types import GIB

GRAPHS_BYTES = 2 * GIB
"""Pools and workspaces of a model's CUDA graphs, beside what the ledger divides: vLLM, too, captures its graphs beyond
``gpu_memory_utilization``.

Source: docs/measured/h200_prefill.json, 0.5 GiB for OPT-13b, 0.6 for Llama-3-8b: prefill graphs alone. Decode graphs
and cuBLAS's workspaces are estimated.
"""


def check(world: World, plan: Plan) -> None:
    """Find out whether this machine can do what is planned, taking none of its memory.

    Raises:
        ValueError: it cannot: what is missing, and the mend.
    """
    for rank in reversed(range(plan.n_ranks)):  # the one that is opened last stays current
        with closing(open_driver(world, plan.hardware, rank)):
            if plan.tier == "peer":
                open_peer(world, plan.hardware, plan.peer + rank, rank).close()
                refuse_too_little_peer_memory(world, plan.hardware, plan.peer + rank, plan.peer_bytes)
    refuse_too_little_host_memory(plan.n_ranks * plan.host_bytes)


@contextmanager
def open_backend(world: World, plan: Plan, *, watch: Watch | None = None) -> Generator[ExecutorBackend]:
    """Load the models of a plan onto the device, or onto several; leaving gives everything back, whatever is under way.

    Args:
        watch: sees every step, for tests.

    Raises:
        ValueError: the device or the host has not enough memory, or weights cannot be read; nothing is held.
        DeviceFailed: a device failed or a rank was lost, now or while it was used.
    """
    with ExitStack() as held:
        held.enter_context(_told_in_a_line())
        ranks = held.enter_context(lead(world, plan)) if plan.n_ranks > 1 else None
        serving = held.enter_context(open_served(world, plan, ranks, watch))
        if ranks:
            held.enter_context(ranks.ending())
        yield serving.backend


@contextmanager
def open_served(world: World, plan: Plan, ranks: Ranks | None, watch: Watch | None = None) -> Generator[Serving]:
    """Load the models onto the device of one rank.

    Raises:
        ValueError: the device or the host has not enough memory, or weights cannot be read; nothing is held.
    """
    rank = ranks.rank if ranks else 0
    with ExitStack() as held:
        driver = held.enter_context(closing(open_driver(world, plan.hardware, rank)))
        peer = None
        if plan.tier == "peer":
            peer = held.enter_context(closing(open_peer(world, plan.hardware, plan.peer + rank, rank)))
        held.enter_context(_torch_bound(driver, plan))
        yield held.enter_context(_open(driver, peer, plan, ranks, watch))


def _open(driver: Driver, peer: Driver | None, plan: Plan, ranks: Ranks | None, watch: Watch | None) -> Serving:
    refuse_too_little_host_memory(plan.host_bytes)
    try:
        return open_serving(driver, plan, HostClock(), peer=peer, watch=watch, ranks=ranks)
    except HbmOverdrawn as refused:
        raise ValueError(f"{driver.device}: {refused}") from refused


@contextmanager
def _told_in_a_line() -> Generator[None]:
    """Turn what only a broken device, or one too small, does into one line."""
    try:
        yield
    except torch.OutOfMemoryError as refused:
        line = str(refused).splitlines()[0]
        raise DeviceFailed(f"{line}; raise activation_bytes in the mix, or lower max_num_batched_tokens") from refused
    except (DriverError, torch.AcceleratorError) as failure:
        line = str(failure).splitlines()[0]
        raise DeviceFailed(f"the driver failed, the run cannot go on: {line}") from failure


@contextmanager
def _torch_bound(driver: Driver, plan: Plan) -> Generator[None]:
    """Keep torch to what the ledger gives it.

    On a GPU its allocator gets the memory that no page is made of, and ``GRAPHS_BYTES`` a model. On a CPU it gets one
    thread: tiny steps lose more by waiting for threads than they gain, and what they compute does not depend on how
    many cores there are.
    """
    device = torch.device(driver.device)
    if device.type != "cuda":
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_threads)
        return
    gc.collect()  # what a run before has left
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    bound = plan.torch_bytes + len(plan.models) * GRAPHS_BYTES
    torch.cuda.set_per_process_memory_fraction(min(1.0, bound / total), device)
    yield
