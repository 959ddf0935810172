"""The physical memory and addresses of experts and KV cache, and the two ways in which groups change hands."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from executor.memory.expert_extents import ExpertExtents, GroupId
from executor.memory.ranges import LendMode
from executor.memory.tensors import tensor_over
from executor.vmm.driver import Driver
from executor.vmm.ranges import AddressRange


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRanges:
    """Pages and addresses of one model.

    Attributes:
        handles: physical memory of every group that may leave.
        groups: address range of these groups at home, in the order of their turns; ``None`` if there are none.
        kv: address range of the KV cache.
        fixed: by layer the pack that never leaves, uint8 on the device.
        masters: by layer the master copies of its groups in the order in which they leave, uint8, pinned host memory.
        buffers: two staging buffers, (2, region_bytes) uint8 on the device.
    """

    extents: ExpertExtents
    mode: LendMode
    device: str
    turns: dict[GroupId, int]
    handles: tuple[int, ...]
    groups: AddressRange | None
    kv: AddressRange
    fixed: tuple[torch.Tensor, ...]
    masters: tuple[torch.Tensor, ...]
    buffers: torch.Tensor

    def home(self, group: GroupId) -> torch.Tensor:
        """The pack of a group at home: uint8, (group_bytes,), on the device."""
        assert self.groups is not None
        n_bytes = self.extents.group.n_bytes
        return tensor_over(self.groups.address + self.turns[group] * n_bytes, n_bytes, self.device)

    @property
    def blocks(self) -> torch.Tensor:
        """The KV cache at its largest, (n_block_ids, block_bytes) uint8 on the device."""
        n_blocks, block_bytes = self.extents.n_block_ids, self.extents.kv.block_bytes
        return tensor_over(self.kv.address, n_blocks * block_bytes, self.device).view(n_blocks, block_bytes)

    def lent(self, group: GroupId) -> torch.Tensor:
        """The same pages as part of the KV cache."""
        n_bytes = self.extents.group.n_bytes
        return tensor_over(self.kv.address + self._place(group), n_bytes, self.device)

    def master(self, group: GroupId) -> torch.Tensor:
        """The master copy of a group: uint8, (group_bytes,), pinned host memory."""
        n_bytes, depth = self.extents.group.n_bytes, self.extents.depth(group)
        return self.masters[group[0]][depth * n_bytes : (depth + 1) * n_bytes]

    def lend(self, group: GroupId) -> None:
        """Make a group part of the KV cache, all of it or nothing."""
        if self.mode is LendMode.REMAP:
            self._move(group, to_kv=True)

    def withdraw(self, group: GroupId) -> None:
        """Make it a home of experts again, likewise."""
        if self.mode is LendMode.REMAP:
            self._move(group, to_kv=False)

    def agrees_with(self, lent: Iterable[GroupId]) -> bool:
        """Whether every group is mapped where it serves."""
        if self.mode is LendMode.ALIAS or self.groups is None:
            return True
        away = set(lent)
        places = {self._place(group) for group in away} | ({0} if self.extents.kv.base_bytes else set())
        homes = {turn * self.extents.group.n_bytes for group, turn in self.turns.items() if group not in away}
        return set(self.kv.backed) == places and set(self.groups.backed) == homes

    def _move(self, group: GroupId, *, to_kv: bool) -> None:
        with ExitStack() as undo:
            if to_kv:
                self._unback_home(group)
                undo.callback(self.back_home, group)
                self.back_lent(group)
            else:
                self.kv.unback(self._place(group))
                undo.callback(self.back_lent, group)
                self.back_home(group)
            undo.pop_all()

    def back_home(self, group: GroupId) -> None:
        """Map a group at home."""
        assert self.groups is not None
        n_bytes, turn = self.extents.group.n_bytes, self.turns[group]
        self.groups.back(turn * n_bytes, self.handles[turn], n_bytes)

    def back_lent(self, group: GroupId) -> None:
        """Map a group in its place in the KV cache."""
        self.kv.back(self._place(group), self.handles[self.turns[group]], self.extents.group.n_bytes)

    def _unback_home(self, group: GroupId) -> None:
        assert self.groups is not None
        self.groups.unback(self.turns[group] * self.extents.group.n_bytes)

    def _place(self, group: GroupId) -> int:
        return self.extents.kv.base_bytes + self.turns[group] * self.extents.group.n_bytes


def open_expert_ranges(driver: Driver, extents: ExpertExtents, mode: LendMode, closing: ExitStack) -> ExpertRanges:
    """Create and map everything, each group at home; in ``alias`` mode in the KV cache as well.

    Args:
        closing: gives everything back, in reverse order.

    Raises:
        DriverError: the driver refused; what had been made is in ``closing``.
    """
    groups, n_bytes = extents.groups, extents.group.n_bytes
    handles = tuple(_created(driver, n_bytes, closing) for _ in groups)
    homes = closing.enter_context(AddressRange(driver, len(groups) * n_bytes)) if groups else None
    kv = closing.enter_context(AddressRange(driver, extents.kv_bytes))
    if extents.kv.base_bytes:
        kv.back(0, _created(driver, extents.kv.base_bytes, closing), extents.kv.base_bytes)
    buffers = _bytes(driver, 2 * extents.region_bytes, closing).view(2, extents.region_bytes)
    ranges = ExpertRanges(
        extents=extents,
        mode=mode,
        device=driver.device,
        turns={group: turn for turn, group in enumerate(groups)},
        handles=handles,
        groups=homes,
        kv=kv,
        fixed=tuple(_fixed(driver, extents, closing)),
        masters=tuple(_masters(driver, extents, closing)),
        buffers=buffers,
    )
    for group in groups:
        ranges.back_home(group)
        if mode is LendMode.ALIAS:
            ranges.back_lent(group)
    return ranges


def _fixed(driver: Driver, extents: ExpertExtents, closing: ExitStack) -> Iterable[torch.Tensor]:
    for layer in range(extents.start.layout.n_layers):
        yield _bytes(driver, extents.fixed(layer).n_bytes, closing)


def _masters(driver: Driver, extents: ExpertExtents, closing: ExitStack) -> Iterable[torch.Tensor]:
    for layer in range(extents.start.layout.n_layers):
        n_bytes = extents.region_bytes if layer else 0
        address = 0
        if n_bytes:
            address = driver.pin(n_bytes)
            closing.callback(driver.unpin, address)
        yield tensor_over(address, n_bytes, "cpu")


def _bytes(driver: Driver, n_bytes: int, closing: ExitStack) -> torch.Tensor:
    """Device memory at an address of its own, uint8."""
    if not n_bytes:
        return tensor_over(0, 0, driver.device)
    handle = _created(driver, n_bytes, closing)
    there = closing.enter_context(AddressRange(driver, n_bytes))
    there.back(0, handle, n_bytes)
    return tensor_over(there.address, n_bytes, driver.device)


def _created(driver: Driver, n_bytes: int, closing: ExitStack) -> int:
    handle = driver.create(n_bytes)
    closing.callback(driver.release, handle)
    return handle
