"""By how much a run's steps were off, and runs whose steps are off like that.

Of a run that hangs on thresholds a simulation is one of many that might have been. What varies is measured: the step
times of the run against those that are simulated for the same steps. They are off for seconds at a time and by kind of
step (a lent machine's link, for one, is slower while its neighbours copy), so deviations are drawn as they were: blocks
of ten seconds, each with the ratios of one block of the run, chosen by chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from policies.backend import Backend, Batch, Change, StepReport
from policies.types import NS_PER_S
from sim.validation.same_decisions import Retold

BLOCK_NS = 10 * NS_PER_S
"""Ours: in exec_c1 the link's rate changed by some 5 % within tens of seconds, for all models at once."""

Kind = tuple[bool, bool]
"""The step has prompts; layers of its model take turns in slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Ratios of real to simulated step times.

    Attributes:
        blocks: for each stretch of the run, by kind of step.
        overall: of the whole run, by kind, where a block had none of it.
    """

    blocks: tuple[Mapping[Kind, float], ...]
    overall: Mapping[Kind, float]


def deviations(retold: Sequence[Retold]) -> Deviations:
    """Add up real and simulated time by block and kind; a step belongs to the block in which it started."""
    blocks: dict[int, dict[Kind, list[int]]] = defaultdict(dict)
    whole: dict[Kind, list[int]] = {}
    for step in retold:
        kind = bool(step.real.n_prefill_tokens), step.cycles
        for sums in (blocks[step.real.start_ns // BLOCK_NS], whole):
            of_kind = sums.setdefault(kind, [0, 0])
            of_kind[0] += step.real.lasted_ns
            of_kind[1] += step.lasted_ns
    return Deviations(blocks=tuple(_ratios(blocks[at]) for at in sorted(blocks)), overall=_ratios(whole))


def _ratios(sums: Mapping[Kind, Sequence[int]]) -> dict[Kind, float]:
    return {kind: real_ns / simulated_ns for kind, (real_ns, simulated_ns) in sums.items() if simulated_ns}


class Deviating:
    """A backend whose steps take longer or shorter than those of a simulated world, in blocks of time.

    The simulated world has a clock of its own, as in ``SameDecisions``. One step is run at a time.

    Args:
        cycles: whether layers of a model take turns in slots now.
        seed: of the draw.

    Attributes:
        now_ns: the present.
    """

    def __init__(self, world: Backend, found: Deviations, cycles: Callable[[int], bool], seed: str) -> None:
        self.now_ns = 0
        self._world, self._found, self._cycles = world, found, cycles
        self._random = Random(seed)
        self._drawn: dict[int, Mapping[Kind, float]] = {}
        self._ratio: float | None = None

    def apply(self, change: Change) -> None:
        """See ``Backend``."""
        self._world.apply(change)

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Run one step, however many were wanted."""
        del n_steps, stop_ns, n_ahead
        self._ratio = self._drawn_for((bool(batch.work.n_prefill_tokens), self._cycles(lane)))
        self._world.submit(lane, batch, 1, 0)

    def advance(self, until_ns: int | None) -> StepReport | None:
        """See ``Backend``."""
        if self._ratio is None:
            assert until_ns is not None, "something is in flight, or there is a bound"
            self._world.advance(self._world.now_ns + max(0, until_ns - self.now_ns))
            self.now_ns = max(self.now_ns, until_ns)
            return None
        ratio, self._ratio = self._ratio, None
        ours, start_ns = self._world.advance(None), self.now_ns
        assert ours is not None, "the simulated step is in flight"
        self.now_ns = start_ns + round((ours.ends_ns[0] - ours.start_ns) * ratio)
        return StepReport(
            lane=ours.lane,
            start_ns=start_ns,
            ends_ns=[self.now_ns],
            compute_ns=[round(ours.compute_ns[0] * ratio)],
            stall_ns=[round(ours.stall_ns[0] * ratio)],
            rest_ns=[round(ours.rest_ns[0] * ratio)],
            swap_ns=round(ours.swap_ns * ratio),
            remap_ns=round(ours.remap_ns * ratio),
        )

    def landed(self) -> tuple[tuple[int, int], ...]:
        """See ``Backend``."""
        return self._world.landed()

    def _drawn_for(self, kind: Kind) -> float:
        at = self.now_ns // BLOCK_NS
        if at not in self._drawn:
            self._drawn[at] = self._random.choice(self._found.blocks)
        return self._drawn[at].get(kind, self._found.overall.get(kind, 1.0))
