"""The memory of one device that changes hands, as tensors, and changes carried out on it.

A change goes through four steps: it is worked out on the books (``change``), the homes
that change hands are fenced, mappings are switched (and switched back if one fails), and
only when nothing can be refused any more are bytes destroyed and the new state published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch

from executor.memory.change import Outcome, work_out
from executor.memory.extents import Extents
from executor.memory.homes import Homes, Lent
from executor.memory.masters import HostMasters, Masters
from executor.memory.mover import Fetch, HomeId, Mover
from executor.memory.ranges import AliasLending, Lending, LendMode, RemapLending, open_ranges
from executor.memory.views import open_views
from executor.vmm.driver import Driver, DriverError, DriverOutOfMemory
from policies.errors import HbmOverdrawn
from policies.memory.experts import Offload, Reload
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Op, Withdraw
from policies.types import GIB

POISON = 0xFF
"""A byte that, repeated, is a NaN in every floating-point format."""


class DeviceMemory:
    """Homes, KV ranges and master copies of all models, at first with every layer at home.

    Views are made once and keep their addresses, so that CUDA graphs may capture them.
    None may be used once the memory is closed, and touching a part of a KV view that is not
    lent faults in ``remap`` mode and reaches a lender's weights in ``alias`` mode.

    Args:
        driver: whose memory; it stays the caller's.
        models: extents of each.
        mode: how homes change hands.
        masters: where master copies are kept; pinned host memory by default.
        poison: fill everything with NaN at first, and again what changes hands.

    Raises:
        HbmOverdrawn: HBM or the memory for master copies does not suffice; nothing is held.
        DriverError: the driver refused something else; nothing is held.
        ValueError: pages are no multiple of the driver's granularity.
    """

    def __init__(
        self,
        driver: Driver,
        models: Sequence[Extents],
        *,
        mode: LendMode = LendMode.ALIAS,
        masters: Masters | None = None,
        poison: bool = False,
    ) -> None:
        _refuse_uneven_pages(driver, models)
        self.models = tuple(models)
        self.mode = mode
        self._poison = poison
        self._homes = tuple(Homes.all_resident(extents.n_homes) for extents in models)
        self._is_sound = True
        held = HostMasters(driver) if masters is None else masters
        try:
            self._open(driver, held)
        except DriverOutOfMemory as refused:
            raise HbmOverdrawn(f"{_sizes(models, held)}: {refused}; lower the shares or lend fewer layers") from refused

    def homes(self, model: int) -> Homes:
        """What each home of a model serves as, which layers cycle and through which slots."""
        return self._homes[model]

    def weights(self, model: int, home: int) -> torch.Tensor:
        """The weights in a home, slot or not: uint8, shape ``(region_bytes,)``, on the device.

        A resident layer runs from ``homes(model).home_of(layer)``; a cycling one from the slot
        of ``homes(model).slots`` into which its master copy was fetched.
        """
        return self._views[model].weights[home]

    def master(self, model: int, layer: int) -> torch.Tensor:
        """The master copy of a lendable layer: uint8, shape ``(region_bytes,)``, in the memory of its tier.

        Raises:
            KeyError: the layer is not lendable.
        """
        return self._views[model].masters[layer]

    def kv(self, model: int) -> torch.Tensor:
        """The KV range, block by block: uint8, shape ``(n_block_ids, block_bytes)``, on the device."""
        return self._views[model].kv

    def kv_blocks(self, model: int, dtype: torch.dtype) -> torch.Tensor:
        """The KV range as K and V: shape ``(n_block_ids, n_layers, 2, block_tokens, n_kv_heads, head_dim)``.

        Raises:
            ValueError: numbers of this type have another size than the model's.
        """
        extents, shape = self.models[model], self.models[model].shape
        if dtype.itemsize != shape.dtype_bytes:
            raise ValueError(f"model {shape.name}: {dtype} has {dtype.itemsize} bytes, its KV {shape.dtype_bytes}")
        block = (shape.n_layers, 2, extents.block_tokens, shape.n_kv_heads, shape.head_dim)
        return self.kv(model).view(dtype).view(extents.n_block_ids, *block)

    @property
    def is_sound(self) -> bool:
        """Whether its state is known: not after a change that failed half-way and could not be undone."""
        return self._is_sound

    def apply(self, ops: Sequence[Op], mover: Mover, agree: Callable[[], None] | None = None) -> None:
        """Carry out ops in order: all of them or none.

        Blocks that were copied before a refusal stay copied: what a move writes to is free until
        the change is published.

        Args:
            mover: does what happens to bytes; see ``Mover`` for what it is asked when.
            agree: called when nothing of this memory can refuse any more; what it raises is a refusal like others.

        Raises:
            HbmOverdrawn: the driver lacks memory for a mapping; nothing was changed.
            DriverError: the driver failed; nothing was changed, unless switching back failed as
                well: then every later change is refused.
            ValueError: an op makes no sense; nothing was changed.
        """
        if not self._is_sound:
            raise DriverError("apply", 0, "an earlier change failed half-way, the memory is in no known state")
        outcome = work_out(self.models, self._homes, ops)
        remaps = self.mode is LendMode.REMAP and any(isinstance(op, Withdraw | Lend) for op in ops)
        mover.fence(outcome.changed, unmaps=remaps)
        try:
            self._switch(ops, mover, agree)
        except BaseException as failure:
            self._is_sound = self._lending.agrees_with(self._homes)
            if self._is_sound and isinstance(failure, DriverOutOfMemory):
                raise HbmOverdrawn(f"no memory for mappings: {failure}") from failure
            raise
        self._is_sound = False  # until every effect has been asked for
        self._publish(outcome, mover)
        self._is_sound = True

    def close(self) -> None:
        """Unmap and give back everything. Nothing on the device may still touch it.

        Raises:
            DriverError: the driver refused something; the rest was given back.
        """
        self._closing.close()

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self, driver: Driver, masters: Masters) -> None:
        with ExitStack() as closing:
            self._ranges = tuple(open_ranges(driver, extents, closing) for extents in self.models)
            is_alias = self.mode is LendMode.ALIAS
            self._lending: Lending = AliasLending(self._ranges) if is_alias else RemapLending(self._ranges)
            self._views = tuple(open_views(driver, masters, ranges, closing) for ranges in self._ranges)
            if self._poison:
                for views, extents in zip(self._views, self.models, strict=True):
                    for held in (*views.weights, views.kv[: extents.layout.n_base_blocks]):
                        held.fill_(POISON)
            self._closing = closing.pop_all()

    def _switch(self, ops: Sequence[Op], mover: Mover, agree: Callable[[], None] | None) -> None:
        """Do what can be refused, and undo it if something is."""
        with ExitStack() as undo:
            for op in ops:
                match op:
                    case Withdraw(lender, home, borrower):
                        self._lending.withdraw(lender, home, borrower)
                        undo.callback(self._lending.lend, lender, home, borrower)
                    case Lend(lender, home, borrower):
                        self._lending.lend(lender, home, borrower)
                        undo.callback(self._lending.withdraw, lender, home, borrower)
                    case Offload() | Reload():
                        raise ValueError(f"model {op.model} has no experts here")
                    case MoveBlocks(model, moves, _):
                        for old, new in moves:
                            mover.copy(self.kv(model)[new], self.kv(model)[old])
                    case Cycle() | Load() | HoldOnHost():
                        pass  # the first two destroy weights: not before the last switch; the third was refused
            if agree is not None:
                agree()
            undo.pop_all()

    def _publish(self, outcome: Outcome, mover: Mover) -> None:
        """Do what cannot be undone."""
        self._homes = outcome.homes
        for home_id in outcome.dead if self._poison else ():
            mover.fill(self._content(home_id), POISON)
        for load in outcome.loads:
            mover.load(self._fetch(*load))
        for at_rest in outcome.settled:
            mover.settle(self._fetch(*at_rest))

    def _fetch(self, model: int, layer: int, home: int) -> Fetch:
        return Fetch(
            model=model, layer=layer, home=home, to=self.weights(model, home), source=self.master(model, layer)
        )

    def _content(self, home_id: HomeId) -> torch.Tensor:
        """The bytes of a home in the place where it serves."""
        model, home = home_id
        use = self._homes[model].uses[home]
        if not isinstance(use, Lent):
            return self.weights(model, home)
        first, n_blocks = self.models[use.borrower].layout.range_of(model, home)
        return self.kv(use.borrower)[first : first + n_blocks]


def _refuse_uneven_pages(driver: Driver, models: Sequence[Extents]) -> None:
    for extents in models:
        if extents.page_bytes % driver.granularity_bytes:
            raise ValueError(
                f"hardware.page_bytes={extents.page_bytes} is no multiple of the {driver.granularity_bytes} bytes that "
                f"{driver.device} maps at once; set it to one"
            )


def _sizes(models: Sequence[Extents], masters: Masters) -> str:
    """What the models want, for a person."""
    hbm = sum(each.n_homes * each.home_bytes + each.base_bytes for each in models)
    copies = sum(len(each.lendable) * each.region_bytes for each in models)
    names = ", ".join(each.shape.name for each in models)
    return f"{names} want {hbm / GIB:.2f} GiB of HBM and {copies / GIB:.2f} GiB of {masters.where}"
