"""A device made of a file in RAM: the same mappings as on a GPU, on any Linux machine.

One memfd is the physical memory and a handle is an offset into it. Mapping is ``mmap``
with MAP_FIXED over addresses that were reserved with PROT_NONE, allowing access is
``mprotect``; so a CPU faults where a GPU would. What the CUDA driver would refuse is
refused (``books``), although Linux would allow it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from executor.vmm.books import Books
from executor.vmm.driver import DriverError, DriverOutOfMemory

PROT_NONE = 0
MAP_FIXED = 0x10  # include/uapi/asm-generic/mman-common.h; not in the mmap module
MAP_NORESERVE = 0x4000  # include/uapi/asm-generic/mman.h; in the mmap module from Python 3.13 on
MAP_FAILED = ctypes.c_void_p(-1).value
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2  # include/uapi/linux/falloc.h


class MemfdDriver:
    """Physical memory of ``hbm_bytes``, taken from the machine page by page as it is touched.

    A process may hold about 65,000 mappings (sysctl vm.max_map_count).

    Raises:
        ValueError: the granularity is no multiple of the machine's page.
    """

    device = "cpu"

    def __init__(self, hbm_bytes: int, granularity_bytes: int = mmap.PAGESIZE) -> None:
        if granularity_bytes <= 0 or granularity_bytes % mmap.PAGESIZE:
            raise ValueError(f"granularity_bytes={granularity_bytes} must be a multiple of {mmap.PAGESIZE} bytes")
        self._hbm_bytes = hbm_bytes
        self._books = Books(granularity_bytes)
        self._physical: dict[int, int] = {}  # bytes by offset, also of handles released while mapped
        self._file_bytes = 0
        self._libc = _libc()
        self._fd = os.memfd_create("hbm")

    @property
    def granularity_bytes(self) -> int:
        """The smallest unit of physical memory."""
        return self._books.granularity_bytes

    def reserve(self, n_bytes: int) -> int:
        """Keep a range of addresses."""
        self._books.may_size("reserve", n_bytes)
        slack_bytes = self.granularity_bytes - mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        start = self._mmap(0, n_bytes + slack_bytes, PROT_NONE, flags)
        address = -(-start // self.granularity_bytes) * self.granularity_bytes
        if address > start:
            self._munmap(start, address - start)
        if start + slack_bytes > address:
            self._munmap(address + n_bytes, start + slack_bytes - address)
        self._books.reservations[address] = n_bytes
        return address

    def free(self, address: int, n_bytes: int) -> None:
        """Give a reservation back."""
        self._books.may_free(address, n_bytes)
        self._munmap(address, n_bytes)
        del self._books.reservations[address]

    def create(self, n_bytes: int) -> int:
        """Allocate physical memory; its offset in the file."""
        self._books.may_size("create", n_bytes)
        free_bytes = self._hbm_bytes - sum(self._physical.values())
        if n_bytes > free_bytes:
            raise DriverOutOfMemory("create", errno.ENOMEM, f"{n_bytes} bytes wanted, {free_bytes} are free")
        handle = self._file_bytes  # offsets are never used again: the file is sparse
        os.ftruncate(self._fd, handle + n_bytes)
        self._file_bytes += n_bytes
        self._physical[handle] = self._books.handles[handle] = n_bytes
        return handle

    def release(self, handle: int) -> None:
        """Give a handle up."""
        self._books.may_release(handle)
        del self._books.handles[handle]
        self._free_if_unused(handle)

    def map(self, address: int, handle: int, n_bytes: int) -> None:
        """Put a whole handle behind an address."""
        self._books.may_map(address, handle, n_bytes)
        self._mmap(address, n_bytes, PROT_NONE, mmap.MAP_SHARED | MAP_FIXED, self._fd, handle)
        self._books.mapped(address, handle, n_bytes)

    def allow_access(self, address: int, n_bytes: int) -> None:
        """Let the CPU read and write mappings."""
        starts = self._books.whole_mappings("allow_access", address, n_bytes)
        self._checked("mprotect", self._libc.mprotect(address, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE))
        for start in starts:
            self._books.mappings[start].is_accessible = True

    def unmap(self, address: int, n_bytes: int) -> None:
        """Take mappings away; the addresses stay reserved."""
        starts = self._books.whole_mappings("unmap", address, n_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
        self._mmap(address, n_bytes, PROT_NONE, flags)
        handles = {self._books.mappings[start].handle for start in starts}
        for start in starts:
            self._books.unmapped(start)
        for handle in handles:
            self._free_if_unused(handle)

    def pin(self, n_bytes: int) -> int:
        """Allocate host memory; a CPU copies from any, so this one is plain."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._mmap(0, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags)
        self._books.pinned[address] = n_bytes
        return address

    def unpin(self, address: int) -> None:
        """Free host memory."""
        self._books.may_unpin(address)
        self._munmap(address, self._books.pinned[address])
        del self._books.pinned[address]

    def close(self) -> None:
        """Close the file. Its pages go back to the machine once nothing maps them."""
        os.close(self._fd)

    def _free_if_unused(self, handle: int) -> None:
        is_mapped = any(mapping.handle == handle for mapping in self._books.mappings.values())
        if handle not in self._books.handles and not is_mapped:
            n_bytes = self._physical.pop(handle)
            mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
            self._checked("fallocate", self._libc.fallocate(self._fd, mode, handle, n_bytes))

    def _mmap(self, address: int, n_bytes: int, access: int, flags: int, fd: int = -1, offset: int = 0) -> int:
        start = self._libc.mmap(address, n_bytes, access, flags, fd, offset)
        self._checked("mmap", -1 if start == MAP_FAILED else 0)
        return start

    def _munmap(self, address: int, n_bytes: int) -> None:
        self._checked("munmap", self._libc.munmap(address, n_bytes))

    def _checked(self, call: str, result: int) -> None:
        if result == 0:
            return
        code = ctypes.get_errno()
        error = DriverOutOfMemory if code == errno.ENOMEM else DriverError
        raise error(call, code, os.strerror(code))


def _libc() -> ctypes.CDLL:
    """The C library of this process, with the types of what is called here."""
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number, offset = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64
    libc.mmap.argtypes = [pointer, size, number, number, number, offset]
    libc.mmap.restype = pointer
    libc.munmap.argtypes = [pointer, size]
    libc.mprotect.argtypes = [pointer, size, number]
    libc.fallocate.argtypes = [number, number, offset, offset]
    return libc
