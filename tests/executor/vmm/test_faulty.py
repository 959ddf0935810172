from __future__ import annotations

from collections.abc import Callable

import pytest

from executor.vmm.books import Live
from executor.vmm.driver import DriverError, DriverOutOfMemory
from executor.vmm.faulty import Fault, FaultyDriver
from tests.executor.vmm.worlds import MEMFD


def outcomes(driver: FaultyDriver, calls: str) -> str:
    """Create (c) or pin (p) in turn: ``.`` for a call that worked, ``x`` for one that failed."""
    page = driver.granularity_bytes
    marks = ""
    for call in calls:
        try:
            (driver.create if call == "c" else driver.pin)(page)
            marks += "."
        except DriverError:
            marks += "x"
    return marks


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (None, "......"),
        (Fault(nth=0), "x....."),
        (Fault(nth=3), "...x.."),
        (Fault(nth=1, call="pin"), "...x.."),
        (Fault(nth=1, call="create", persists=True), "..x.x."),
        (Fault(nth=2, persists=True), "..xxxx"),
        (Fault(nth=0, call="unmap"), "......"),
    ],
)
def test_the_calls_that_were_named_fail_and_no_other(fault: Fault | None, expected: str) -> None:
    driver = FaultyDriver(MEMFD.open())
    driver.set_fault(fault)
    assert outcomes(driver, "cpcpcp") == expected
    assert driver.n_calls == {"create": 3, "pin": 3}
    n_made = expected.count(".")
    assert driver.live.n_handles + driver.live.n_pinned == n_made


def test_calls_are_counted_from_when_the_fault_is_set() -> None:
    driver = FaultyDriver(MEMFD.open())
    driver.set_fault(Fault(nth=2))
    assert outcomes(driver, "cc") == ".."
    driver.set_fault(Fault(nth=1))
    assert outcomes(driver, "ccc") == ".x."


def test_a_fault_may_be_a_lack_of_memory() -> None:
    driver = FaultyDriver(MEMFD.open())
    driver.set_fault(Fault(nth=0, out_of_memory=True))
    with pytest.raises(DriverOutOfMemory, match="create failed with 999"):
        driver.create(4096)


@pytest.mark.parametrize("name", ["reserve", "create", "map", "allow_access", "unmap", "release", "free", "pin"])
def test_a_call_that_fails_has_no_effect(name: str) -> None:
    driver = FaultyDriver(MEMFD.open())
    handle, address = driver.create(4096), driver.reserve(8192)
    driver.map(address, handle, 4096)
    before = driver.live, driver.mappings
    calls: dict[str, Callable[[], object]] = {
        "reserve": lambda: driver.reserve(4096),
        "create": lambda: driver.create(4096),
        "map": lambda: driver.map(address + 4096, handle, 4096),
        "allow_access": lambda: driver.allow_access(address, 4096),
        "unmap": lambda: driver.unmap(address, 4096),
        "release": lambda: driver.release(handle),
        "free": lambda: driver.free(address, 8192),
        "pin": lambda: driver.pin(4096),
    }
    driver.set_fault(Fault(nth=0, call=name))
    with pytest.raises(DriverError, match=name):
        calls[name]()
    assert (driver.live, driver.mappings) == before
    assert driver.live == Live(n_reservations=1, n_handles=1, n_mappings=1)
