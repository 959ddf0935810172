"""What the executor asks of a device's memory, and the errors that it answers with.

Addresses and physical memory come apart: a *reservation* is a range of addresses with
nothing behind it, a *handle* names physical memory without an address, a *mapping* puts
the one behind the other. A handle may be mapped at several addresses at once, and what
was written through one of them is read through every other.
"""

from __future__ import annotations

from typing import Protocol


class DriverError(Exception):
    """A driver call failed and had no effect: a broken device, or a mistake of ours.

    Attributes:
        call: the driver's name of the call.
        code: its error code (CUresult, or errno).
        text: what the code means.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(call, code, text)
        self.call = call
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.call} failed with {self.code}: {self.text}"


class DriverOutOfMemory(DriverError):
    """The driver has no physical memory, host memory, addresses or page tables left."""


class Driver(Protocol):
    """The memory of one device. Not thread-safe; every call may raise ``DriverError``.

    Sizes are multiples of ``granularity_bytes`` (of the host's pages for ``pin``).
    """

    @property
    def device(self) -> str:
        """Torch's name of the device that sees the mappings: ``cuda:0``, ``cpu``."""
        ...

    @property
    def granularity_bytes(self) -> int:
        """The smallest unit of physical memory: the size of a page."""
        ...

    def reserve(self, n_bytes: int) -> int:
        """Keep a range of addresses, aligned to the granularity; touching it faults."""
        ...

    def free(self, address: int, n_bytes: int) -> None:
        """Give a whole reservation back; nothing may be mapped in it."""
        ...

    def create(self, n_bytes: int) -> int:
        """Allocate physical memory, of unknown content; its handle."""
        ...

    def release(self, handle: int) -> None:
        """Give a handle up. The memory is freed once nothing maps it any more."""
        ...

    def map(self, address: int, handle: int, n_bytes: int) -> None:
        """Put a handle, all ``n_bytes`` of it, behind a reserved address; touching it still faults."""
        ...

    def allow_access(self, address: int, n_bytes: int) -> None:
        """Let the device read and write whole mappings that fill this range."""
        ...

    def unmap(self, address: int, n_bytes: int) -> None:
        """Take whole mappings that fill this range away; touching it faults, the content stays in the handles.

        The caller has seen to it that nothing in flight touches the range, and that it is mapped:
        CUDA may accept a range that is not.
        """
        ...

    def pin(self, n_bytes: int) -> int:
        """Allocate host memory that the device copies from at full speed; its address."""
        ...

    def unpin(self, address: int) -> None:
        """Free host memory that ``pin`` gave."""
        ...

    def close(self) -> None:
        """Let go of the device; everything made with this driver was given back before."""
        ...
