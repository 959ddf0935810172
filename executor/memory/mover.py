"""What a change of the memory asks of whoever knows streams: to wait, to copy, to fill.

All of it is asked for in an order that is right if each call takes effect at once. A
mover on a GPU may leave work on streams, as long as the effects come in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

HomeId = tuple[int, int]
"""(model, home)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fetch:
    """Weights of a layer on their way from host memory into a home.

    Attributes:
        to: the home, uint8, shape ``(region_bytes,)``, on the device.
        source: the master copy, uint8, shape ``(region_bytes,)``, pinned host memory.
    """

    model: int
    layer: int
    home: int
    to: torch.Tensor
    source: torch.Tensor


class Mover(Protocol):
    """Carries out what a change does to bytes."""

    def fence(self, homes: frozenset[HomeId], *, unmaps: bool) -> None:
        """See to it that nothing submitted earlier touches these homes later than what follows.

        Args:
            homes: those that change hands: their readers and writers are steps of the lender
                and of the borrower, and copies in flight.
            unmaps: mappings will change as soon as this returns, and after each ``copy`` of the same
                change: both must wait for the device itself. Otherwise an order of streams is enough.
        """
        ...

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copy within HBM; the bytes do not overlap. The change may still be refused afterwards."""
        ...

    def fill(self, to: torch.Tensor, value: int) -> None:
        """Set every byte."""
        ...

    def load(self, fetch: Fetch) -> None:
        """Begin a fetch into a home where the layer is to stay. It cycles until the load is told as landed."""
        ...

    def settle(self, fetch: Fetch) -> None:
        """The layer stays in what was its slot and is resident at once.

        A slot that holds other weights must be filled before the next step reads it; one that
        holds this layer already may be left as it is.
        """
        ...


class AtOnce:
    """Every effect is there when the call returns: for a CPU, and for tests on a GPU, which it brings to a halt."""

    def fence(self, homes: frozenset[HomeId], *, unmaps: bool) -> None:  # noqa: ARG002 - everything is waited for
        """Wait for whatever a GPU still does."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now."""
        to.copy_(source)
        _finish(to)

    def fill(self, to: torch.Tensor, value: int) -> None:
        """Fill now."""
        to.fill_(value)
        _finish(to)

    def load(self, fetch: Fetch) -> None:
        """Copy now."""
        self.copy(fetch.to, fetch.source)

    def settle(self, fetch: Fetch) -> None:
        """Copy now."""
        self.copy(fetch.to, fetch.source)


def _finish(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
