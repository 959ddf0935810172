"""A range of addresses that knows what is mapped where in it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType, TracebackType

from executor.vmm.driver import Driver


class AddressRange:
    """A reservation and the mappings in it, given back together.

    Attributes:
        address: its first.
        n_bytes: its length, a multiple of the driver's granularity.

    Raises:
        DriverError: there are no such addresses.
    """

    def __init__(self, driver: Driver, n_bytes: int) -> None:
        self.address = driver.reserve(n_bytes)
        self.n_bytes = n_bytes
        self._driver = driver
        self._backed: dict[int, int] = {}

    @property
    def backed(self) -> Mapping[int, int]:
        """Bytes of each mapping, by its offset in the range."""
        return MappingProxyType(self._backed)

    def back(self, offset: int, handle: int, n_bytes: int) -> None:
        """Put a handle, all ``n_bytes`` of it, behind an offset, readable and writable, or change nothing.

        Raises:
            DriverError: the driver refused; if access was refused, the mapping was undone.
        """
        self._driver.map(self.address + offset, handle, n_bytes)
        self._backed[offset] = n_bytes
        with ExitStack() as undo:
            undo.callback(self.unback, offset)
            self._driver.allow_access(self.address + offset, n_bytes)
            undo.pop_all()

    def unback(self, offset: int) -> None:
        """Take away what was put behind an offset; its content stays in the handle.

        Raises:
            ValueError: there is nothing behind it.
            DriverError: the driver refused; nothing was changed.
        """
        if offset not in self._backed:
            raise ValueError(f"offset {offset} of the range at {self.address:#x} is not backed")
        self._driver.unmap(self.address + offset, self._backed[offset])
        del self._backed[offset]

    def close(self) -> None:
        """Take every mapping away and give the addresses back; one failure does not stop the rest."""
        with ExitStack() as closing:
            closing.callback(self._driver.free, self.address, self.n_bytes)
            for offset in self._backed:
                closing.callback(self.unback, offset)

    def __enter__(self) -> AddressRange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
