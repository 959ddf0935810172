"""A recorded schedule once more, on a device whose weights are elsewhere: the same rows, other residencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from torch import Tensor

from policies.memory.ops import MoveBlocks, Op
from policies.memory.residency import Target
from tests.executor.backend.stage import Asked, Entry, Stage


@dataclass(slots=True)
class Renamed:
    """KV blocks under other ids, one for one, so that a schedule that borrowed needs no loan."""

    names: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    n_used: dict[int, int] = field(default_factory=dict[int, int])

    def block(self, lane: int, block: int) -> int:
        """The new name, given in the order in which blocks are met."""
        if (lane, block) not in self.names:
            self.names[lane, block] = self.n_used.get(lane, 0)
            self.n_used[lane] = self.names[lane, block] + 1
        return self.names[lane, block]

    def entry(self, entry: Entry) -> Entry:
        """A step or the moves of a change, with new names; what else a change does is left out."""
        if isinstance(entry, Asked):
            lane = entry.lane
            rows = [replace(row, blocks=[self.block(lane, each) for each in row.blocks]) for row in entry.rows]
            return replace(entry, rows=tuple(rows))
        return tuple(self._moved(op) for op in entry if isinstance(op, MoveBlocks))

    def _moved(self, op: MoveBlocks) -> MoveBlocks:
        moves = tuple((self.block(op.model, old), self.block(op.model, new)) for old, new in op.moves)
        return replace(op, moves=moves)


def replay(stage: Stage, entries: Iterable[Entry], before: Callable[[int], None] | None = None) -> Iterator[Tensor]:
    """Ask the device for every step, with every change in between; final hidden states of each.

    Args:
        before: is called before each step with its number.
    """
    staged, nth = stage.staged, 0
    for entry in entries:
        if not isinstance(entry, Asked):
            carry_out(stage, entry)
            continue
        if before is not None:
            before(nth)
        nth += 1
        passed = staged.forwards[entry.lane].run(entry.rows)
        staged.streams.take_stalls()
        staged.streams.wait(staged.streams.mark())
        yield passed.hidden.cpu().clone()


def carry_out(stage: Stage, ops: Iterable[Op]) -> None:
    """Change the memory as the backend does."""
    stage.staged.mover.carry_out(tuple(ops))
    stage.staged.mover.landed()


def force(stage: Stage, *targets: Target) -> None:
    """Bring the memory to these targets, whatever the policy would say, and land what was loading."""
    plan = stage.ledger.plan(targets, lambda _lender, _home: 0)
    carry_out(stage, plan.ops)
    stage.ledger.commit(plan)
    for model, residency in enumerate(stage.ledger.residencies):
        for layer, _ in residency.loading:
            carry_out(stage, stage.ledger.land(model, layer))
