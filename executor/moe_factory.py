"""The real world of one mixture of experts, made from a configuration: a device with it, given back at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager

from executor.backend import ExecutorBackend
from executor.clock import HostClock
from executor.devices import World, open_driver, refuse_too_little_host_memory
from executor.guards import told_in_a_line, torch_bound
from executor.lane import Watch
from executor.moe_plan import MoePlan
from executor.moe_serving import MoeServing, open_moe_serving
from executor.vmm.driver import Driver
from policies.errors import HbmOverdrawn


def check_moe(world: World, plan: MoePlan) -> None:
    """Find out whether this machine can do what is planned, taking none of its memory.

    Raises:
        ValueError: it cannot: what is missing, and the mend.
    """
    open_driver(world, plan.hardware).close()
    refuse_too_little_host_memory(plan.host_bytes)


@contextmanager
def open_moe_backend(world: World, plan: MoePlan, *, watch: Watch | None = None) -> Generator[ExecutorBackend]:
    """Load the model of a plan onto the device; leaving gives everything back, whatever is under way.

    Args:
        watch: sees every step, for tests.

    Raises:
        ValueError: the device or the host has not enough memory, or weights cannot be read; nothing is held.
        DeviceFailed: the device failed, now or while it was used.
    """
    with ExitStack() as held:
        held.enter_context(told_in_a_line())
        driver = held.enter_context(closing(open_driver(world, plan.hardware)))
        held.enter_context(torch_bound(driver, plan.torch_bytes, 1))
        yield held.enter_context(_open(driver, plan, watch)).backend


def _open(driver: Driver, plan: MoePlan, watch: Watch | None) -> MoeServing:
    refuse_too_little_host_memory(plan.host_bytes)
    try:
        return open_moe_serving(driver, plan, HostClock(), watch=watch)
    except HbmOverdrawn as refused:
        raise ValueError(f"{driver.device}: {refused}") from refused
