"""The CUDA driver's virtual memory of one GPU (cuda.bindings), every result checked.

It shares the device's primary context with torch. cuda.bindings ships no types that a
checker finds, so it is called here and nowhere else.

Source: CUDA driver API, section "Virtual Memory Management".
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from executor.vmm.driver import DriverError, DriverOutOfMemory

cuda: Any = import_module("cuda.bindings.driver")


class NoGpu(Exception):
    """This machine has no CUDA driver or no such device: what is missing, in one line."""


class CudaDriver:
    """Virtual memory of one GPU. The thread that opens it has the primary context current from then on.

    Args:
        index: which GPU, as the driver counts them.
        readers: further GPUs that read and write the mappings, over NVLink or PCIe. With any, it is the memory of a
            peer, and the thread's current context stays what it was.

    Raises:
        NoGpu: there is no driver, no such device, or no way from a reader to it.
        DriverError: the driver is there but refuses.
    """

    def __init__(self, index: int = 0, readers: Sequence[int] = ()) -> None:
        _init(index)
        for reader in readers:
            _refuse_unreachable(reader, index)
        self.device = f"cuda:{index}"
        self._gpu = _checked("cuDeviceGet", cuda.cuDeviceGet(index))
        context = _checked("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(self._gpu))
        if not readers:
            _checked("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context))
        self._where = _in_hbm(index)
        self._access = [_read_write(each) for each in (index, *readers)]
        granularity = cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        result = cuda.cuMemGetAllocationGranularity(self._where, granularity)
        self.granularity_bytes: int = _checked("cuMemGetAllocationGranularity", result)

    def reserve(self, n_bytes: int) -> int:
        """Keep a range of addresses."""
        return int(_checked("cuMemAddressReserve", cuda.cuMemAddressReserve(n_bytes, self.granularity_bytes, 0, 0)))

    def free(self, address: int, n_bytes: int) -> None:
        """Give a reservation back."""
        _checked("cuMemAddressFree", cuda.cuMemAddressFree(address, n_bytes))

    def create(self, n_bytes: int) -> int:
        """Allocate HBM."""
        return int(_checked("cuMemCreate", cuda.cuMemCreate(n_bytes, self._where, 0)))

    def release(self, handle: int) -> None:
        """Give a handle up."""
        _checked("cuMemRelease", cuda.cuMemRelease(handle))

    def map(self, address: int, handle: int, n_bytes: int) -> None:
        """Put a whole handle behind an address: of a part the driver says CUDA_ERROR_NOT_SUPPORTED (580.159.04)."""
        _checked("cuMemMap", cuda.cuMemMap(address, n_bytes, 0, handle, 0))

    def allow_access(self, address: int, n_bytes: int) -> None:
        """Let the GPU, and its readers, read and write mappings."""
        _checked("cuMemSetAccess", cuda.cuMemSetAccess(address, n_bytes, self._access, len(self._access)))

    def unmap(self, address: int, n_bytes: int) -> None:
        """Take mappings away. The driver waits for no kernel that touches them, and may accept what is not mapped."""
        _checked("cuMemUnmap", cuda.cuMemUnmap(address, n_bytes))

    def pin(self, n_bytes: int) -> int:
        """Allocate page-locked host memory of exactly this size; torch's own pool would round up to a power of two."""
        return int(_checked("cuMemHostAlloc", cuda.cuMemHostAlloc(n_bytes, cuda.CU_MEMHOSTALLOC_PORTABLE)))

    def unpin(self, address: int) -> None:
        """Free page-locked host memory."""
        _checked("cuMemFreeHost", cuda.cuMemFreeHost(address))

    def close(self) -> None:
        """Let go of the primary context."""
        _checked("cuDevicePrimaryCtxRelease", cuda.cuDevicePrimaryCtxRelease(self._gpu))


def _init(index: int) -> None:
    try:
        (code,) = cuda.cuInit(0)
    except RuntimeError as missing:  # cuda.pathfinder's DynamicLibNotFoundError is one
        raise NoGpu(f"no CUDA driver: {missing}") from missing
    if code == cuda.CUresult.CUDA_ERROR_NO_DEVICE:
        raise NoGpu("the CUDA driver finds no GPU")
    _checked("cuInit", (code,))
    n_devices = _checked("cuDeviceGetCount", cuda.cuDeviceGetCount())
    if not 0 <= index < n_devices:
        raise NoGpu(f"there is no GPU {index}; this machine has {n_devices}")


def _refuse_unreachable(reader: int, index: int) -> None:
    _init(reader)
    can = _checked("cuDeviceCanAccessPeer", cuda.cuDeviceCanAccessPeer(reader, index))
    if not can:
        raise NoGpu(f"GPU {reader} cannot reach the memory of GPU {index}: nvidia-smi topo -p2p r shows which can")


def _in_hbm(index: int) -> Any:
    where = cuda.CUmemAllocationProp()
    where.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    where.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    where.location.id = index
    return where


def _read_write(index: int) -> Any:
    access = cuda.CUmemAccessDesc()
    access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = index
    access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return access


def _checked(call: str, result: tuple[Any, ...]) -> Any:
    """The value that a call returned beside its code.

    Raises:
        DriverOutOfMemory: the code says so.
        DriverError: any other failure.
    """
    code, *values = result
    if code == cuda.CUresult.CUDA_SUCCESS:
        return values[0] if values else None
    error = DriverOutOfMemory if code == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY else DriverError
    raise error(call, int(code), code.name)
