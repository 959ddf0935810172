"""Where master copies of lendable weights are kept: in pinned host memory, or in another GPU's HBM.

Either way a master copy is bytes from which a copy engine of the device fetches. A *tier*
is a kind of such memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal, Protocol

import torch

from executor.memory.tensors import tensor_over
from executor.vmm.driver import Driver
from executor.vmm.ranges import AddressRange

Tier = Literal["host", "peer"]


class Masters(Protocol):
    """Memory of one tier."""

    @property
    def where(self) -> str:
        """Its name, for a person."""
        ...

    def new(self, n_bytes: int, closing: ExitStack) -> torch.Tensor:
        """Allocate a master copy: uint8, shape ``(n_bytes,)``.

        Args:
            closing: gives it back.

        Raises:
            DriverError: there is no such memory left; what had been made is in ``closing``.
        """
        ...


class HostMasters:
    """Pinned host memory, over PCIe or a chip-to-chip link."""

    where = "pinned host memory"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def new(self, n_bytes: int, closing: ExitStack) -> torch.Tensor:
        """Pin host memory."""
        address = self._driver.pin(n_bytes)
        closing.callback(self._driver.unpin, address)
        return tensor_over(address, n_bytes, "cpu")


class PeerMasters:
    """Memory of another device, mapped so that this one reads and writes it over their link.

    Its tensors say that they are on the device that reads them. So torch copies from them as within
    that device: on its own stream, with nothing asked of the peer's. (Between tensors of two devices
    torch's ``copy_`` runs on the source's current stream, and in a NULL stream it serialises both
    devices: measured on two H200s.)

    Args:
        peer: whose memory; its mappings are open to ``device``.
        device: torch's name of the device that fetches.
    """

    def __init__(self, peer: Driver, device: str) -> None:
        self._peer, self._device = peer, device
        self.where = f"memory of the peer {peer.device}"

    def new(self, n_bytes: int, closing: ExitStack) -> torch.Tensor:
        """Create and map memory of the peer, in whole pages."""
        page_bytes = self._peer.granularity_bytes
        whole_bytes = -(-n_bytes // page_bytes) * page_bytes
        handle = self._peer.create(whole_bytes)
        closing.callback(self._peer.release, handle)
        addresses = closing.enter_context(AddressRange(self._peer, whole_bytes))
        addresses.back(0, handle, whole_bytes)
        return tensor_over(addresses.address, n_bytes, self._device)
