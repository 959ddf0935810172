from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.vmm.books import Live
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault, FaultyDriver
from executor.vmm.ranges import AddressRange
from tests.executor.vmm.worlds import WORLDS, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return request.param


@pytest.fixture
def driver(world: World) -> Iterator[FaultyDriver]:
    driver = FaultyDriver(world.open())
    yield driver
    assert driver.live == Live()
    driver.close()


def test_a_range_is_given_back_with_all_that_is_mapped_in_it(driver: FaultyDriver) -> None:
    page = driver.granularity_bytes
    handle = driver.create(2 * page)
    with AddressRange(driver, 8 * page) as span:
        span.back(0, handle, 2 * page)
        span.back(3 * page, handle, 2 * page)
        assert span.backed == {0: 2 * page, 3 * page: 2 * page}
        assert driver.live.n_mappings == 2
    driver.release(handle)


def test_backing_undoes_the_mapping_when_access_is_refused(driver: FaultyDriver) -> None:
    page = driver.granularity_bytes
    handle = driver.create(page)
    with AddressRange(driver, page) as span:
        driver.set_fault(Fault(nth=0, call="allow_access"))
        with pytest.raises(DriverError, match="allow_access"):
            span.back(0, handle, page)
        assert span.backed == {}
        assert driver.live.n_mappings == 0
        span.back(0, handle, page)
    driver.release(handle)


def test_a_mapping_that_could_not_be_undone_is_still_known_and_goes_with_the_range(driver: FaultyDriver) -> None:
    page = driver.granularity_bytes
    handle = driver.create(page)
    with AddressRange(driver, page) as span:
        driver.set_fault(Fault(nth=1, persists=True))
        with pytest.raises(DriverError, match="unmap"):
            span.back(0, handle, page)
        assert span.backed == {0: page}
        driver.set_fault(None)
    driver.release(handle)


def test_what_is_not_backed_cannot_be_taken_away(driver: FaultyDriver) -> None:
    page = driver.granularity_bytes
    handle = driver.create(page)
    with AddressRange(driver, 2 * page) as span:
        span.back(0, handle, page)
        span.unback(0)
        for offset in (0, page):
            with pytest.raises(ValueError, match="not backed"):
                span.unback(offset)
    driver.release(handle)


def test_one_mapping_that_cannot_be_taken_away_does_not_keep_the_others(driver: FaultyDriver) -> None:
    page = driver.granularity_bytes
    handle = driver.create(page)
    span = AddressRange(driver, 3 * page)
    for index in range(3):
        span.back(index * page, handle, page)
    driver.set_fault(Fault(nth=1, call="unmap"))
    with pytest.raises(DriverError):
        span.close()
    assert driver.live.n_mappings == 1
    span.close()
    driver.release(handle)
