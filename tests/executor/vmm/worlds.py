"""Every driver there is, with a way to read and write through its addresses without torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from executor.vmm.driver import Driver
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver

HBM_PAGES = 64


@dataclass(frozen=True, slots=True)
class World:
    """A kind of device."""

    name: str
    open: Callable[[], Driver]
    read: Callable[[int, int], bytes]
    write: Callable[[int, bytes], None]


def _memfd() -> Driver:
    return MemfdDriver(HBM_PAGES * 4096)


def _memfd_with_large_pages() -> Driver:
    return MemfdDriver(HBM_PAGES * 65536, granularity_bytes=65536)


def _faulty() -> Driver:
    return FaultyDriver(_memfd())


def open_cuda() -> Driver:
    """The GPU, or the test is skipped."""
    pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")
    module = import_module("executor.vmm.cuda")
    try:
        _keep_context()
        return module.CudaDriver()
    except module.NoGpu as missing:
        pytest.skip(str(missing))


def open_cuda_peer() -> Driver:
    """The memory of a second GPU as the first sees it, or the test is skipped."""
    open_cuda().close()
    module = import_module("executor.vmm.cuda")
    try:
        return module.CudaDriver(1, readers=(0,))
    except module.NoGpu as missing:
        pytest.skip(str(missing))


@cache
def _keep_context() -> Driver:
    """A driver that is never closed: else each test would wait for a new context."""
    return import_module("executor.vmm.cuda").CudaDriver()


def _host_write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def cuda_read(address: int, n_bytes: int) -> bytes:
    data = bytearray(n_bytes)
    _cuda_call("cuMemcpyDtoH", data, address, n_bytes)
    return bytes(data)


def cuda_write(address: int, data: bytes) -> None:
    _cuda_call("cuMemcpyHtoD", address, data, len(data))


def _cuda_call(name: str, *arguments: object) -> None:
    driver: Any = import_module("cuda.bindings.driver")
    (code,) = getattr(driver, name)(*arguments)
    assert code == driver.CUresult.CUDA_SUCCESS, f"{name}: {code}"


MEMFD = World("memfd", _memfd, ctypes.string_at, _host_write)
LARGE_PAGES = World("memfd of large pages", _memfd_with_large_pages, ctypes.string_at, _host_write)
FAULTY = World("faulty", _faulty, ctypes.string_at, _host_write)
CUDA = World("cuda", open_cuda, cuda_read, cuda_write)

STAND_INS = [pytest.param(world, id=world.name) for world in (MEMFD, LARGE_PAGES, FAULTY)]
WORLDS = [*STAND_INS, pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu)]
