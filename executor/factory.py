"""The real world, made from a configuration: a device with models on it, given back at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager

from executor.backend import ExecutorBackend
from executor.clock import HostClock
from executor.devices import (
    World,
    open_driver,
    open_peer,
    refuse_too_little_host_memory,
    refuse_too_little_peer_memory,
)
from executor.guards import told_in_a_line, torch_bound
from executor.lane import Watch
from executor.mixture.plan import MoePlan
from executor.mixture.serving import MoeServing, open_moe_serving
from executor.plan import Plan
from executor.ranks.processes import lead
from executor.ranks.ranks import Ranks
from executor.serving import Serving, open_serving
from executor.vmm.driver import Driver
from policies.errors import HbmOverdrawn

AnyPlan = Plan | MoePlan
"""Dense models, or one with experts."""


def check(world: World, plan: AnyPlan) -> None:
    """Find out whether this machine can do what is planned, taking none of its memory.

    Raises:
        ValueError: it cannot: what is missing, and the mend.
    """
    for rank in reversed(range(plan.n_ranks)):  # the one that is opened last stays current
        with closing(open_driver(world, plan.hardware, rank)):
            if isinstance(plan, Plan) and plan.tier == "peer":
                open_peer(world, plan.hardware, plan.peer + rank, rank).close()
                refuse_too_little_peer_memory(world, plan.hardware, plan.peer + rank, plan.peer_bytes)
    refuse_too_little_host_memory(plan.n_ranks * plan.host_bytes)


@contextmanager
def open_backend(world: World, plan: AnyPlan, *, watch: Watch | None = None) -> Generator[ExecutorBackend]:
    """Load the models of a plan onto the device, or onto several; leaving gives everything back, whatever is under way.

    Args:
        watch: sees every step, for tests.

    Raises:
        ValueError: the device or the host has not enough memory, or weights cannot be read; nothing is held.
        DeviceFailed: a device failed or a rank was lost, now or while it was used.
    """
    with ExitStack() as held:
        held.enter_context(told_in_a_line())
        ranks = held.enter_context(lead(world, plan)) if plan.n_ranks > 1 else None
        serving = held.enter_context(open_served(world, plan, ranks, watch))
        if ranks:
            held.enter_context(ranks.ending())
        yield serving.backend


@contextmanager
def open_served(
    world: World, plan: AnyPlan, ranks: Ranks | None, watch: Watch | None = None
) -> Generator[Serving | MoeServing]:
    """Load the models onto the device of one rank.

    Raises:
        ValueError: the device or the host has not enough memory, or weights cannot be read; nothing is held.
    """
    rank = ranks.rank if ranks else 0
    with ExitStack() as held:
        driver = held.enter_context(closing(open_driver(world, plan.hardware, rank)))
        peer = None
        if isinstance(plan, Plan) and plan.tier == "peer":
            peer = held.enter_context(closing(open_peer(world, plan.hardware, plan.peer + rank, rank)))
        n_models = len(plan.models) if isinstance(plan, Plan) else 1
        held.enter_context(torch_bound(driver, plan.torch_bytes, n_models))
        yield held.enter_context(_open(driver, peer, plan, ranks, watch))


def _open(
    driver: Driver, peer: Driver | None, plan: AnyPlan, ranks: Ranks | None, watch: Watch | None
) -> Serving | MoeServing:
    refuse_too_little_host_memory(plan.host_bytes)
    try:
        if isinstance(plan, MoePlan):
            return open_moe_serving(driver, plan, HostClock(), watch=watch, ranks=ranks)
        return open_serving(driver, plan, HostClock(), peer=peer, watch=watch, ranks=ranks)
    except HbmOverdrawn as refused:
        raise ValueError(f"{driver.device}: {refused}") from refused
