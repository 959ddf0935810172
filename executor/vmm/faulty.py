"""A driver that fails on command, around one that works: for tests of what a failure leaves behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from executor.vmm.books import Books, Live
from executor.vmm.driver import Driver, DriverError, DriverOutOfMemory

CODE = 999
"""CUDA_ERROR_UNKNOWN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which calls fail, counted from 0 from when it is set; a call that fails has no effect.

    Attributes:
        call: count and fail only calls of this name (``"map"``); ``None``: any.
        persists: every later such call fails too.
        out_of_memory: with which kind of error.
    """

    nth: int
    call: str | None = None
    persists: bool = False
    out_of_memory: bool = False


class FaultyDriver:
    """Hands every call on, counts it, and lets fail what ``fault`` says.

    Attributes:
        n_calls: calls by name, also those that failed.
    """

    def __init__(self, inner: Driver) -> None:
        self.n_calls: Counter[str] = Counter()
        self._inner = inner
        self._books = Books(inner.granularity_bytes)
        self._fault: Fault | None = None
        self._n_seen = 0

    @property
    def live(self) -> Live:
        """What has not been given back."""
        return self._books.live

    @property
    def mappings(self) -> dict[int, tuple[int, int, bool]]:
        """(handle, bytes, whether it may be accessed) of every mapping, by address."""
        return {
            address: (mapping.handle, mapping.n_bytes, mapping.is_accessible)
            for address, mapping in self._books.mappings.items()
        }

    def set_fault(self, fault: Fault | None) -> None:
        """From now on let calls fail, or none."""
        self._fault = fault
        self._n_seen = 0

    @property
    def device(self) -> str:
        """Torch's name of the device."""
        return self._inner.device

    @property
    def granularity_bytes(self) -> int:
        """The smallest unit of physical memory."""
        return self._inner.granularity_bytes

    def reserve(self, n_bytes: int) -> int:
        """Keep a range of addresses."""
        self._enter("reserve")
        self._books.may_size("reserve", n_bytes)
        address = self._inner.reserve(n_bytes)
        self._books.reservations[address] = n_bytes
        return address

    def free(self, address: int, n_bytes: int) -> None:
        """Give a reservation back."""
        self._enter("free")
        self._books.may_free(address, n_bytes)
        self._inner.free(address, n_bytes)
        del self._books.reservations[address]

    def create(self, n_bytes: int) -> int:
        """Allocate physical memory."""
        self._enter("create")
        self._books.may_size("create", n_bytes)
        handle = self._inner.create(n_bytes)
        self._books.handles[handle] = n_bytes
        return handle

    def release(self, handle: int) -> None:
        """Give a handle up."""
        self._enter("release")
        self._books.may_release(handle)
        self._inner.release(handle)
        del self._books.handles[handle]

    def map(self, address: int, handle: int, n_bytes: int) -> None:
        """Put a whole handle behind an address."""
        self._enter("map")
        self._books.may_map(address, handle, n_bytes)
        self._inner.map(address, handle, n_bytes)
        self._books.mapped(address, handle, n_bytes)

    def allow_access(self, address: int, n_bytes: int) -> None:
        """Let the device read and write mappings."""
        self._enter("allow_access")
        starts = self._books.whole_mappings("allow_access", address, n_bytes)
        self._inner.allow_access(address, n_bytes)
        for start in starts:
            self._books.mappings[start].is_accessible = True

    def unmap(self, address: int, n_bytes: int) -> None:
        """Take mappings away."""
        self._enter("unmap")
        starts = self._books.whole_mappings("unmap", address, n_bytes)
        self._inner.unmap(address, n_bytes)
        for start in starts:
            self._books.unmapped(start)

    def pin(self, n_bytes: int) -> int:
        """Allocate host memory."""
        self._enter("pin")
        address = self._inner.pin(n_bytes)
        self._books.pinned[address] = n_bytes
        return address

    def unpin(self, address: int) -> None:
        """Free host memory."""
        self._enter("unpin")
        self._books.may_unpin(address)
        self._inner.unpin(address)
        del self._books.pinned[address]

    def close(self) -> None:
        """Let go of the device."""
        self._inner.close()

    def _enter(self, call: str) -> None:
        """Count a call, and let it fail if it is its turn."""
        self.n_calls[call] += 1
        fault = self._fault
        if fault is None or fault.call not in (None, call):
            return
        nth, self._n_seen = self._n_seen, self._n_seen + 1
        if nth == fault.nth or (fault.persists and nth > fault.nth):
            error = DriverOutOfMemory if fault.out_of_memory else DriverError
            raise error(call, CODE, "as commanded")
