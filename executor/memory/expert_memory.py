"""The experts and the KV cache of one model on a device, and changes of the boundary between them.

As ``DeviceMemory`` for layers: a change is worked out on the books, what changes hands is fenced, mappings are
switched (and switched back if one fails), and only when nothing can be refused any more is it published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import torch

from executor.memory.device import POISON
from executor.memory.expert_extents import ExpertExtents, GroupId
from executor.memory.expert_ranges import open_expert_ranges
from executor.memory.ranges import LendMode
from executor.vmm.driver import Driver, DriverError, DriverOutOfMemory
from policies.errors import HbmOverdrawn
from policies.memory.experts import ExpertOp, ExpertResidency, Offload, Reload
from policies.types import GIB


class GroupMover(Protocol):
    """Carries out what a change of experts does to bytes."""

    def fence(self, *, unmaps: bool) -> None:
        """See to it that no step and no copy submitted earlier touches a group later than what follows.

        Args:
            unmaps: mappings will change as soon as this returns: wait for the device itself.
        """
        ...

    def fill(self, to: torch.Tensor, value: int) -> None:
        """Set every byte."""
        ...

    def reload(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Fetch a group that comes back to stay; the steps to come wait for it."""
        ...


class ExpertMemory:
    """Packs of experts, a KV cache and staging buffers, at first with every expert at home.

    Views keep their addresses. None may be used once the memory is closed.

    Args:
        driver: whose memory; it stays the caller's.
        mode: how groups change hands.
        poison: fill everything with NaN at first, and again what changes hands.

    Attributes:
        experts: which groups are offloaded.

    Raises:
        HbmOverdrawn: HBM or host memory does not suffice; nothing is held.
        DriverError: the driver refused something else; nothing is held.
        ValueError: pages are no multiple of the driver's granularity.
    """

    def __init__(
        self, driver: Driver, extents: ExpertExtents, *, mode: LendMode = LendMode.ALIAS, poison: bool = False
    ) -> None:
        if extents.page_bytes % driver.granularity_bytes:
            raise ValueError(
                f"hardware.page_bytes={extents.page_bytes} is no multiple of the {driver.granularity_bytes} bytes that "
                f"{driver.device} maps at once; set it to one"
            )
        self.extents = extents
        self.experts: ExpertResidency = extents.start
        self._remaps = mode is LendMode.REMAP
        self._poison = poison
        self._is_sound = True
        try:
            with ExitStack() as closing:
                self._ranges = open_expert_ranges(driver, extents, mode, closing)
                self._closing = closing.pop_all()
        except DriverOutOfMemory as refused:
            raise HbmOverdrawn(f"{_sizes(extents)}: {refused}; lower the share or offload fewer experts") from refused
        if poison:
            for held in (*self._ranges.fixed, self._ranges.buffers, self.kv[: extents.kv.n_base_blocks]):
                held.fill_(POISON)

    def fixed(self, layer: int) -> torch.Tensor:
        """The pack of a layer that never leaves: uint8, on the device."""
        return self._ranges.fixed[layer]

    def home(self, group: GroupId) -> torch.Tensor:
        """The pack of a group at home, whatever is there now: uint8, (group_bytes,), on the device."""
        return self._ranges.home(group)

    def master(self, group: GroupId) -> torch.Tensor:
        """The master copy of a group: uint8, (group_bytes,), pinned host memory."""
        return self._ranges.master(group)

    def masters(self, layer: int) -> torch.Tensor:
        """Those of a layer in the order in which its groups leave: uint8, (region_bytes,), pinned host memory."""
        return self._ranges.masters[layer]

    @property
    def buffers(self) -> torch.Tensor:
        """The two staging buffers: uint8, (2, region_bytes), on the device."""
        return self._ranges.buffers

    @property
    def kv(self) -> torch.Tensor:
        """The KV cache at its largest, block by block: uint8, (n_block_ids, block_bytes), on the device.

        Behind blocks of groups at home there is nothing in ``remap`` mode, and their weights in ``alias`` mode.
        """
        return self._ranges.blocks

    def kv_blocks(self) -> torch.Tensor:
        """The same as K and V: (n_block_ids, n_layers, 2, block_tokens, n_kv_heads, head_dim)."""
        return self.kv.view(self.extents.spec.dtype).view(self.extents.kv_shape(self.extents.n_block_ids))

    @property
    def is_sound(self) -> bool:
        """Whether its state is known: not after a change that failed half-way and could not be undone."""
        return self._is_sound

    def apply(self, ops: Sequence[ExpertOp], mover: GroupMover, agree: Callable[[], None] | None = None) -> None:
        """Carry out ops in order: all of them or none.

        Args:
            agree: called when nothing of this memory can refuse any more; what it raises is a refusal like others.

        Raises:
            HbmOverdrawn: the driver lacks memory for a mapping; nothing was changed.
            DriverError: the driver failed; nothing was changed, unless switching back failed as well: then
                every later change is refused.
            ValueError: an op does not follow from where the boundary is; nothing was changed.
        """
        if not self._is_sound:
            raise DriverError("apply", 0, "an earlier change failed half-way, the memory is in no known state")
        after = _work_out(self.experts, ops)
        mover.fence(unmaps=self._remaps)
        try:
            self._switch(ops, agree)
        except BaseException as failure:
            self._is_sound = self._ranges.agrees_with(offloaded(self.experts))
            if self._is_sound and isinstance(failure, DriverOutOfMemory):
                raise HbmOverdrawn(f"no memory for mappings: {failure}") from failure
            raise
        self._is_sound = False  # until every effect has been asked for
        self._publish(ops, mover)
        self.experts = after
        self._is_sound = True

    def close(self) -> None:
        """Unmap and give back everything. Nothing on the device may still touch it."""
        self._closing.close()

    def __enter__(self) -> ExpertMemory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _switch(self, ops: Sequence[ExpertOp], agree: Callable[[], None] | None) -> None:
        """Do what can be refused, and undo it if something is."""
        ranges = self._ranges
        with ExitStack() as undo:
            for op in ops:
                forth, back = (
                    (ranges.lend, ranges.withdraw) if isinstance(op, Offload) else (ranges.withdraw, ranges.lend)
                )
                for group in op.groups:
                    forth(group)
                    undo.callback(back, group)
            if agree is not None:
                agree()
            undo.pop_all()

    def _publish(self, ops: Sequence[ExpertOp], mover: GroupMover) -> None:
        """Do what cannot be undone."""
        for op in ops:
            for group in op.groups:
                match op:
                    case Offload():
                        if self._poison:
                            mover.fill(self._ranges.lent(group), POISON)
                    case Reload():
                        mover.reload(self.home(group), self.master(group))


def offloaded(experts: ExpertResidency) -> list[GroupId]:
    """Every group that is in the KV cache."""
    increments = range(experts.n_increments)
    return [group for increment in increments for group in experts.groups_of_increment(increment)]


def _work_out(before: ExpertResidency, ops: Sequence[ExpertOp]) -> ExpertResidency:
    """Play the ops through on the books.

    Raises:
        ValueError: an op does not follow from where the boundary is.
    """
    n_increments = before.n_increments
    for op in ops:
        expected = n_increments if isinstance(op, Offload) else n_increments - 1
        if op.increment != expected or op.groups != before.groups_of_increment(op.increment) or not op.groups:
            raise ValueError(f"{op} does not follow {n_increments} increments; plan it with the ledger it belongs to")
        n_increments += 1 if isinstance(op, Offload) else -1
    return ExpertResidency(before.layout, before.cap, n_increments)


def _sizes(extents: ExpertExtents) -> str:
    """What the model wants, for a person."""
    hbm = extents.start.layout.total_bytes + extents.kv.base_bytes + 2 * extents.region_bytes
    name = extents.spec.shape.name
    return f"{name} wants {hbm / GIB:.2f} GiB of HBM and {extents.host_bytes / GIB:.2f} GiB of pinned host memory"
