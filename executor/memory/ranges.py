"""The physical memory and the addresses of the models, and the two ways in which homes change hands.

``alias``: every home is mapped at start-up, as a home and in the KV range of every model
that may borrow it; lending changes no mapping. ``remap``: a home is mapped in one place
at a time; lending unmaps it here and maps it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from executor.memory.extents import Extents
from executor.memory.homes import Homes, Lent
from executor.vmm.driver import Driver
from executor.vmm.ranges import AddressRange


class LendMode(Enum):
    """How homes change hands."""

    ALIAS = "alias"
    """Everything is mapped at start-up wherever it may serve."""
    REMAP = "remap"
    """Unmap, map, set-access when a home is lent or withdrawn."""


@dataclass(frozen=True, slots=True)
class ModelRanges:
    """One model's pages and addresses.

    Attributes:
        handles: physical memory of each home.
        homes, kv: address ranges (see ``Extents``).
    """

    extents: Extents
    handles: tuple[int, ...]
    homes: AddressRange
    kv: AddressRange

    def back_home(self, home: int) -> None:
        """Map a home in its own place."""
        n_bytes = self.extents.home_bytes
        self.homes.back(home * n_bytes, self.handles[home], n_bytes)

    def unback_home(self, home: int) -> None:
        """Unmap a home in its own place."""
        self.homes.unback(home * self.extents.home_bytes)

    def back_lent(self, index: int, home: int, lender: ModelRanges) -> None:
        """Map a home of the lender, model ``index``, in this model's KV range."""
        self.kv.back(self.extents.lent_offset(index, home), lender.handles[home], lender.extents.home_bytes)

    def unback_lent(self, index: int, home: int) -> None:
        """Unmap a home of model ``index`` in this model's KV range."""
        self.kv.unback(self.extents.lent_offset(index, home))


def open_ranges(driver: Driver, extents: Extents, closing: ExitStack) -> ModelRanges:
    """Create and map what a model has to itself: homes and KV base.

    Args:
        closing: gives everything back, in reverse order.

    Raises:
        DriverError: the driver refused; what had been made is in ``closing``.
    """
    handles = tuple(_created(driver, extents.home_bytes, closing) for _ in range(extents.n_homes))
    homes = closing.enter_context(AddressRange(driver, extents.n_homes * extents.home_bytes))
    kv = closing.enter_context(AddressRange(driver, extents.kv_bytes))
    ranges = ModelRanges(extents, handles, homes, kv)
    for home in range(extents.n_homes):
        ranges.back_home(home)
    if extents.base_bytes:
        kv.back(0, _created(driver, extents.base_bytes, closing), extents.base_bytes)
    return ranges


def _created(driver: Driver, n_bytes: int, closing: ExitStack) -> int:
    handle = driver.create(n_bytes)
    closing.callback(driver.release, handle)
    return handle


class Lending(Protocol):
    """How a home gets into a borrower's KV range and back: all of it or nothing."""

    def lend(self, lender: int, home: int, borrower: int) -> None:
        """Make a home part of the borrower's KV range."""
        ...

    def withdraw(self, lender: int, home: int, borrower: int) -> None:
        """Make a lent home a home again."""
        ...

    def agrees_with(self, homes: Sequence[Homes], /) -> bool:
        """Whether every home is mapped where it serves, as far as is known without asking the driver."""
        ...


class AliasLending:
    """Maps everything now, so that nothing is left to do later.

    Raises:
        DriverError: the driver refused; what had been mapped goes with the ranges.
    """

    def __init__(self, models: Sequence[ModelRanges]) -> None:
        for borrower in models:
            for lender in sorted(borrower.extents.lenders):
                for home in sorted(models[lender].extents.lendable):
                    borrower.back_lent(lender, home, models[lender])

    def lend(self, lender: int, home: int, borrower: int) -> None:
        """Nothing: it is mapped there."""

    def withdraw(self, lender: int, home: int, borrower: int) -> None:
        """Nothing: it is mapped at home."""

    def agrees_with(self, _homes: Sequence[Homes], /) -> bool:
        """It does: everything is mapped everywhere."""
        return True


class RemapLending:
    """Maps a home where it serves, and nowhere else."""

    def __init__(self, models: Sequence[ModelRanges]) -> None:
        self._models = models

    def lend(self, lender: int, home: int, borrower: int) -> None:
        """Unmap it at home, map it in the borrower's KV range."""
        with ExitStack() as undo:
            self._models[lender].unback_home(home)
            undo.callback(self._models[lender].back_home, home)
            self._models[borrower].back_lent(lender, home, self._models[lender])
            undo.pop_all()

    def withdraw(self, lender: int, home: int, borrower: int) -> None:
        """Unmap it in the borrower's KV range, map it at home."""
        with ExitStack() as undo:
            self._models[borrower].unback_lent(lender, home)
            undo.callback(self._models[borrower].back_lent, lender, home, self._models[lender])
            self._models[lender].back_home(home)
            undo.pop_all()

    def agrees_with(self, homes: Sequence[Homes], /) -> bool:
        """Compare the mappings with what the homes serve as."""
        at_home: list[set[int]] = [set() for _ in self._models]
        in_kv: list[set[int]] = [{0} if model.extents.base_bytes else set() for model in self._models]
        for lender, of_lender in enumerate(homes):
            for home, use in enumerate(of_lender.uses):
                if not isinstance(use, Lent):
                    at_home[lender].add(home * self._models[lender].extents.home_bytes)
                    continue
                in_kv[use.borrower].add(self._models[use.borrower].extents.lent_offset(lender, home))
        return all(
            set(model.homes.backed) == at_home[index] and set(model.kv.backed) == in_kv[index]
            for index, model in enumerate(self._models)
        )
