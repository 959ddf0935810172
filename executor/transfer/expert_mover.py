"""Changes of the boundary between experts and KV cache on streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol

from torch import Tensor

from executor.experts.tables import LiveTables, groups_by_layer
from executor.memory.expert_memory import GroupMover
from executor.transfer.staging import Staging
from executor.transfer.streams import Mark, Streams
from policies.memory.experts import ExpertOp, ExpertResidency, Offload, Reload
from policies.memory.ops import Op


class Boundary(Protocol):
    """The memory in which experts and KV cache meet."""

    @property
    def experts(self) -> ExpertResidency:
        """Which groups are offloaded."""
        ...

    def apply(self, ops: Sequence[ExpertOp], mover: GroupMover) -> None:
        """Carry out ops, all of them or none."""
        ...


class ExpertMover(Generic[Mark]):
    """Does what a change does to bytes (``GroupMover``), and keeps staging and tables in step with it."""

    def __init__(self, memory: Boundary, staging: Staging[Mark], tables: LiveTables, streams: Streams[Mark]) -> None:
        self._memory, self._staging, self._tables, self._streams = memory, staging, tables, streams

    def carry_out(self, ops: Sequence[Op | Offload | Reload]) -> None:
        """Apply ops to the memory, all of them or none; between two steps.

        Raises:
            HbmOverdrawn, DriverError, ValueError: as ``ExpertMemory.apply``; nothing was changed.
        """
        moves = [op for op in ops if isinstance(op, Offload | Reload)]
        if len(moves) < len(ops):
            raise ValueError(f"{ops}: of a mixture of experts only experts move")
        if not moves:
            return
        self._memory.apply(moves, self)
        self._staging.set_regions(groups_by_layer(self._memory.experts))
        with self._streams.computing():
            self._tables.rewrite(self._staging.buffer_of)
        self._streams.take_stalls()  # the change waited, not a step

    def landed(self) -> list[tuple[int, int]]:
        """None: no layer is ever loaded, and steps wait for experts that come back."""
        return []

    def fence(self, *, unmaps: bool) -> None:
        """All reads of experts and all use of KV blocks are on the compute stream, and so is what follows."""
        if unmaps:
            self._streams.wait(self._streams.mark())

    def fill(self, to: Tensor, value: int) -> None:
        """Fill on the compute stream."""
        with self._streams.computing():
            to.fill_(value)

    def reload(self, to: Tensor, source: Tensor) -> None:
        """Fetch behind all that was computed, and let all that is computed from now on wait for it."""
        self._streams.hold(self._streams.fetch(to, source, self._streams.mark()))
