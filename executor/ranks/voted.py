"""Memories of a rank that change if those of every rank can: layers and KV cache, or experts and KV cache."""

from __future__ import annotations

from collections.abc import Sequence

from executor.memory.device import DeviceMemory
from executor.memory.expert_memory import ExpertMemory, GroupMover
from executor.memory.homes import Homes
from executor.memory.mover import Mover
from executor.ranks.ranks import Ranks, ballot
from policies.memory.experts import ExpertOp, ExpertResidency
from policies.memory.ops import Op


class VotedMemory:
    """A rank's memory, which changes if every rank's can."""

    def __init__(self, memory: DeviceMemory, ranks: Ranks) -> None:
        self._memory, self._ranks = memory, ranks

    def homes(self, model: int) -> Homes:
        """What each home of a model serves as."""
        return self._memory.homes(model)

    def apply(self, ops: Sequence[Op], mover: Mover) -> None:
        """Carry out ops on every rank or on none.

        Raises:
            HbmOverdrawn, DriverError, ValueError: as ``DeviceMemory.apply``, here or on another rank.
        """
        with ballot(self._ranks) as vote:
            self._memory.apply(ops, mover, vote.yes)


class VotedExperts:
    """Likewise with experts, of which every rank holds its part: the boundary is at the same groups on all."""

    def __init__(self, memory: ExpertMemory, ranks: Ranks) -> None:
        self._memory, self._ranks = memory, ranks

    @property
    def experts(self) -> ExpertResidency:
        """Which groups are offloaded, on every rank."""
        return self._memory.experts

    def apply(self, ops: Sequence[ExpertOp], mover: GroupMover) -> None:
        """Carry out ops on every rank or on none.

        Raises:
            HbmOverdrawn, DriverError, ValueError: as ``ExpertMemory.apply``, here or on another rank.
        """
        with ballot(self._ranks) as vote:
            self._memory.apply(ops, mover, vote.yes)
