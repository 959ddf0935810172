"""What is reserved, created, mapped and pinned, and which calls a CUDA driver would refuse.

``memfd`` asks it so that a mistake that only a GPU would punish is found on a CPU;
``faulty`` keeps it beside any driver and so finds what was not given back.
"""

from __future__ import annotations

import errno
from bisect import bisect_right, insort
from dataclasses import dataclass, field

from executor.vmm.driver import DriverError


@dataclass(slots=True)
class Mapping:
    """A handle, all ``n_bytes`` of it, behind some address."""

    handle: int
    n_bytes: int
    is_accessible: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """How much has not been given back."""

    n_reservations: int = 0
    n_handles: int = 0
    n_mappings: int = 0
    n_pinned: int = 0


@dataclass(slots=True)
class Books:
    """The books of one driver. ``may_...`` refuses a call, the others enter that it was done.

    Attributes:
        reservations, pinned: bytes by address.
        handles: bytes by handle, until it is released.
        mappings: by address.
    """

    granularity_bytes: int
    reservations: dict[int, int] = field(default_factory=dict[int, int])
    handles: dict[int, int] = field(default_factory=dict[int, int])
    mappings: dict[int, Mapping] = field(default_factory=dict[int, Mapping])
    pinned: dict[int, int] = field(default_factory=dict[int, int])
    _starts: list[int] = field(default_factory=list[int])

    @property
    def live(self) -> Live:
        """What has not been given back."""
        return Live(len(self.reservations), len(self.handles), len(self.mappings), len(self.pinned))

    def may_size(self, call: str, n_bytes: int) -> None:
        """Refuse sizes that are no whole number of pages."""
        if n_bytes <= 0 or n_bytes % self.granularity_bytes:
            _refuse(call, f"{n_bytes} bytes are no positive multiple of {self.granularity_bytes}")

    def may_free(self, address: int, n_bytes: int) -> None:
        """Refuse what is no whole reservation, or has mappings in it."""
        if self.reservations.get(address) != n_bytes:
            _refuse("free", f"{n_bytes} bytes from {address:#x} are no reservation")
        if self._overlaps(address, n_bytes):
            _refuse("free", f"something is mapped within {n_bytes} bytes from {address:#x}")

    def may_release(self, handle: int) -> None:
        """Refuse what is no handle any more, or never was."""
        if handle not in self.handles:
            _refuse("release", f"there is no handle {handle}")

    def may_map(self, address: int, handle: int, n_bytes: int) -> None:
        """Refuse a mapping outside a reservation, over another one, or of another size than the handle's."""
        self.may_size("map", n_bytes)
        self.may_size("map", address)
        if n_bytes != self.handles.get(handle, 0):
            _refuse("map", f"handle {handle} has {self.handles.get(handle, 0)} bytes, not {n_bytes}")
        if not any(start <= address and address + n_bytes <= start + size for start, size in self.reservations.items()):
            _refuse("map", f"{n_bytes} bytes from {address:#x} are in no reservation")
        if self._overlaps(address, n_bytes):
            _refuse("map", f"something is mapped within {n_bytes} bytes from {address:#x}")

    def whole_mappings(self, call: str, address: int, n_bytes: int) -> list[int]:
        """Addresses of the mappings that fill a range.

        Raises:
            DriverError: part of it is not mapped, or a mapping lies only partly in it.
        """
        found: list[int] = []
        here, end = address, address + n_bytes
        while here < end and here in self.mappings:
            found.append(here)
            here += self.mappings[here].n_bytes
        if not found or here != end:
            _refuse(call, f"{n_bytes} bytes from {address:#x} are not filled by whole mappings")
        return found

    def may_unpin(self, address: int) -> None:
        """Refuse what was not pinned."""
        if address not in self.pinned:
            _refuse("unpin", f"nothing is pinned at {address:#x}")

    def mapped(self, address: int, handle: int, n_bytes: int) -> None:
        """Enter a mapping."""
        self.mappings[address] = Mapping(handle, n_bytes)
        insort(self._starts, address)

    def unmapped(self, address: int) -> None:
        """Strike out a mapping."""
        del self.mappings[address]
        self._starts.remove(address)

    def _overlaps(self, address: int, n_bytes: int) -> bool:
        before = bisect_right(self._starts, address + n_bytes - 1) - 1
        if before < 0:
            return False
        start = self._starts[before]
        return start + self.mappings[start].n_bytes > address


def _refuse(call: str, why: str) -> None:
    raise DriverError(call, errno.EINVAL, why)
