"""What every driver promises (``executor/vmm/driver.py``), whatever its memory is made of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from executor.vmm.driver import Driver, DriverError, DriverOutOfMemory
from tests.conftest import REPOSITORY
from tests.executor.vmm.worlds import HBM_PAGES, LARGE_PAGES, MEMFD, STAND_INS, WORLDS, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return request.param


@pytest.fixture
def driver(world: World) -> Iterator[Driver]:
    driver = world.open()
    yield driver
    driver.close()


def backed(driver: Driver, handle: int, n_bytes: int) -> int:
    """A new reservation with the handle behind it."""
    address = driver.reserve(n_bytes)
    driver.map(address, handle, n_bytes)
    driver.allow_access(address, n_bytes)
    return address


def unback(driver: Driver, address: int, n_bytes: int) -> None:
    driver.unmap(address, n_bytes)
    driver.free(address, n_bytes)


def test_a_reservation_is_aligned_to_the_granularity_and_given_back_whole(driver: Driver) -> None:
    page = driver.granularity_bytes
    addresses = [driver.reserve(n_pages * page) for n_pages in (1, 3, 2)]
    assert all(address % page == 0 for address in addresses)
    for address, n_pages in zip(addresses, (1, 3, 2), strict=True):
        driver.free(address, n_pages * page)


def test_far_more_addresses_than_memory_can_be_reserved(driver: Driver) -> None:
    n_bytes = 2**40
    driver.free(driver.reserve(n_bytes), n_bytes)


def test_what_is_written_through_one_address_is_read_through_every_other(world: World, driver: Driver) -> None:
    n_bytes = 2 * driver.granularity_bytes
    handle = driver.create(n_bytes)
    first, second = backed(driver, handle, n_bytes), backed(driver, handle, n_bytes)
    world.write(first, b"weights")
    assert world.read(second, 7) == b"weights"
    world.write(second + n_bytes - 2, b"KV")
    assert world.read(first + n_bytes - 2, 2) == b"KV"
    for address in (first, second):
        unback(driver, address, n_bytes)
    driver.release(handle)


def test_content_is_kept_while_nothing_maps_a_handle(world: World, driver: Driver) -> None:
    n_bytes = driver.granularity_bytes
    handle = driver.create(n_bytes)
    here = backed(driver, handle, n_bytes)
    world.write(here, b"kept")
    unback(driver, here, n_bytes)
    there = backed(driver, handle, n_bytes)
    assert world.read(there, 4) == b"kept"
    unback(driver, there, n_bytes)
    driver.release(handle)


def test_two_handles_change_places_behind_one_address(world: World, driver: Driver) -> None:
    n_bytes = driver.granularity_bytes
    handles = [driver.create(n_bytes) for _ in range(2)]
    address = driver.reserve(n_bytes)
    for content in (b"0", b"1"):
        driver.map(address, handles[int(content)], n_bytes)
        driver.allow_access(address, n_bytes)
        world.write(address, content)
        driver.unmap(address, n_bytes)
    driver.map(address, handles[0], n_bytes)
    driver.allow_access(address, n_bytes)
    assert world.read(address, 1) == b"0"
    unback(driver, address, n_bytes)
    for handle in handles:
        driver.release(handle)


def test_a_handle_may_be_released_while_it_is_mapped_and_keeps_its_content(world: World, driver: Driver) -> None:
    n_bytes = driver.granularity_bytes
    handle = driver.create(n_bytes)
    address = backed(driver, handle, n_bytes)
    world.write(address, b"still here")
    driver.release(handle)
    assert world.read(address, 10) == b"still here"
    unback(driver, address, n_bytes)


def test_a_handle_is_mapped_whole_or_not_at_all(driver: Driver) -> None:
    """Measured on an H200: cuMemMap of fewer bytes than a handle has fails with CUDA_ERROR_NOT_SUPPORTED."""
    page = driver.granularity_bytes
    handle, address = driver.create(3 * page), driver.reserve(3 * page)
    with pytest.raises(DriverError):
        driver.map(address, handle, 2 * page)
    driver.map(address, handle, 3 * page)
    unback(driver, address, 3 * page)
    driver.release(handle)


def test_neighbours_are_mapped_one_by_one_and_opened_and_unmapped_together(world: World, driver: Driver) -> None:
    page = driver.granularity_bytes
    handles = [driver.create(page) for _ in range(3)]
    address = driver.reserve(3 * page)
    for index, handle in enumerate(handles):
        driver.map(address + index * page, handle, page)
    driver.allow_access(address, 3 * page)
    world.write(address + page - 1, b"across")
    assert world.read(address + page - 1, 6) == b"across"
    unback(driver, address, 3 * page)
    for handle in handles:
        driver.release(handle)


def test_pinned_memory_is_ordinary_host_memory(driver: Driver) -> None:
    address = driver.pin(8192)
    MEMFD.write(address + 8190, b"ok")
    assert MEMFD.read(address + 8190, 2) == b"ok"
    driver.unpin(address)


def test_handles_without_number_can_come_and_go(driver: Driver) -> None:
    n_bytes = driver.granularity_bytes * HBM_PAGES // 4
    for _ in range(20):
        driver.release(driver.create(n_bytes))


@dataclass(frozen=True, slots=True)
class Scene:
    """A reservation of two pages, and a handle of one page behind the first of them."""

    driver: Driver
    address: int
    handle: int
    page: int


MISUSES: dict[str, Callable[[Scene], object]] = {
    "mapping over a mapping": lambda at: at.driver.map(at.address, at.handle, at.page),
    "mapping outside every reservation": lambda at: at.driver.map(at.page, at.handle, at.page),
    "mapping over the end": lambda at: at.driver.map(at.address + at.page, at.handle, 2 * at.page),
    "mapping half a page": lambda at: at.driver.map(at.address + at.page, at.handle, at.page // 2),
    "mapping between pages": lambda at: at.driver.map(at.address + at.page + at.page // 2, at.handle, at.page),
    "opening what is not mapped": lambda at: at.driver.allow_access(at.address + at.page, at.page),
    "freeing addresses that are mapped": lambda at: at.driver.free(at.address, 2 * at.page),
    "creating half a page": lambda at: at.driver.create(at.page // 2),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=list(MISUSES))
def test_misuse_is_refused_and_leaves_everything_as_it_was(
    world: World, driver: Driver, misuse: Callable[[Scene], object]
) -> None:
    page = driver.granularity_bytes
    handle = driver.create(page)
    address = driver.reserve(2 * page)
    driver.map(address, handle, page)
    driver.allow_access(address, page)
    world.write(address, b"as it was")
    with pytest.raises(DriverError):
        misuse(Scene(driver, address, handle, page))
    assert world.read(address, 9) == b"as it was"
    driver.unmap(address, page)
    driver.free(address, 2 * page)
    driver.release(handle)


@pytest.mark.parametrize("world", STAND_INS)
def test_unmapping_what_is_not_mapped_is_refused_although_cuda_may_accept_it(world: World) -> None:
    driver = world.open()
    page = driver.granularity_bytes
    address = driver.reserve(page)
    with pytest.raises(DriverError, match="unmap"):
        driver.unmap(address, page)
    driver.free(address, page)
    driver.close()


def test_a_released_handle_cannot_be_mapped() -> None:
    driver = MEMFD.open()
    page = driver.granularity_bytes
    handle, address = driver.create(page), driver.reserve(page)
    driver.release(handle)
    with pytest.raises(DriverError, match="0 bytes"):
        driver.map(address, handle, page)
    driver.close()


@pytest.mark.parametrize("world", [MEMFD, LARGE_PAGES], ids=lambda world: world.name)
def test_memory_that_is_not_there_is_refused_and_free_again_once_released_and_unmapped(world: World) -> None:
    driver = world.open()
    n_bytes = driver.granularity_bytes * HBM_PAGES
    handle = driver.create(n_bytes)
    address = backed(driver, handle, n_bytes)
    for step in (lambda: driver.release(handle), lambda: unback(driver, address, n_bytes)):
        with pytest.raises(DriverOutOfMemory, match="0 are free"):
            driver.create(driver.granularity_bytes)
        step()
    driver.release(driver.create(n_bytes))
    driver.close()


TOUCH = """
from tests.executor.vmm.worlds import CUDA, LARGE_PAGES, MEMFD, FAULTY
world = {{world.name: world for world in (CUDA, LARGE_PAGES, MEMFD, FAULTY)}}[{name!r}]
driver = world.open()
page = driver.granularity_bytes
handle = driver.create(page)
address = driver.reserve(2 * page)
driver.map(address, handle, page)
{before}
print("touching", flush=True)
world.read({touched}, 1)
print("survived")
"""

OPENED = "driver.allow_access(address, page)"


@pytest.mark.parametrize(
    ("before", "touched"),
    [
        pytest.param(OPENED, "address + page", id="where nothing was ever mapped"),
        pytest.param(f"{OPENED}; world.read(address, 1); driver.unmap(address, page)", "address", id="once unmapped"),
        pytest.param("pass", "address", id="before access is allowed"),
    ],
)
def test_touching_an_address_faults(world: World, driver: Driver, before: str, touched: str) -> None:
    del driver  # opened to skip where there is none
    code = TOUCH.format(name=world.name, before=before, touched=touched)
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout == "touching\n", done.stderr
    assert done.returncode != 0
