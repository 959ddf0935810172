"""A run's own decisions with simulated step times: how far off are steps, with nothing hanging on them?

A policy acts at thresholds, so a simulation that is a little off in its step times may decide otherwise, and from
then on it is another run. Here the loop is told the step times that the device had. It then takes the decisions that
the run took, which is checked step by step, and a simulated world is asked what each of these steps would have taken.
That world has a clock of its own, on which time passes as in the run while nothing runs, and with simulated steps else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from policies.backend import Backend, Batch, Change, StepReport
from policies.memory.ops import Load
from sim.validation.record import Record, RecordedStep


class Departed(ValueError):
    """The run's own step times did not lead to its decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retold:
    """One step in both clocks.

    Attributes:
        real: as it was recorded.
        start_ns, end_ns, stall_ns: as it was simulated, in the simulation's clock.
        batch: what ran.
        cycles: layers of its model took turns in slots.
    """

    real: RecordedStep
    start_ns: int
    end_ns: int
    stall_ns: int
    batch: Batch
    cycles: bool

    @property
    def lasted_ns(self) -> int:
        """As it was simulated."""
        return self.end_ns - self.start_ns


class SameDecisions:
    """A backend that takes as long as a run took, and notes how long a simulated one would have.

    Args:
        world: the simulated one.
        cycles: whether layers of a model take turns in slots now.

    Attributes:
        now_ns: the present of the run.
        retold: the steps so far.
    """

    def __init__(self, record: Record, world: Backend, cycles: Callable[[int], bool]) -> None:
        self.now_ns = 0
        self.retold: list[Retold] = []
        self._record, self._world, self._cycles = record, world, cycles
        self._submitted: tuple[Batch, bool] | None = None
        self._loading: dict[int, list[int]] = {}
        self._landed: list[tuple[int, int]] = []

    def apply(self, change: Change) -> None:
        """See ``Backend``; a load is complete when the run found it so."""
        self._world.apply(change)
        for op in change.ops:
            if isinstance(op, Load):
                self._loading.setdefault(op.model, []).append(op.layer)

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Run one step of a batch, however many were wanted.

        Raises:
            Departed: another step was recorded, or none any more.
        """
        del n_steps, stop_ns, n_ahead
        at, steps = len(self.retold), self._record.steps
        work = batch.work
        ours = RecordedStep(lane, self.now_ns, 0, work.n_prefill_tokens, work.n_decode_seqs, 0)
        if at == len(steps):
            raise Departed(f"the run ended after {at:,} steps, and its own step times lead to one more")
        real = steps[at]
        if str(real) != str(ours) or real.start_ns != self.now_ns:
            when = f"step {at + 1:,} of {len(steps):,}"
            raise Departed(f"{when}: the run has {real} at {real.start_ns} ns, its own step times lead to {ours}")
        self._submitted = batch, self._cycles(lane)
        self._world.submit(lane, batch, 1, 0)

    def advance(self, until_ns: int | None) -> StepReport | None:
        """See ``Backend``: to the end of the step as it was recorded."""
        if self._submitted is None:
            assert until_ns is not None, "something is in flight, or there is a bound"
            self._world.advance(self._world.now_ns + max(0, until_ns - self.now_ns))
            self._reach(max(self.now_ns, until_ns))
            return None
        (batch, cycles), self._submitted = self._submitted, None
        real, ours = self._record.steps[len(self.retold)], self._world.advance(None)
        assert ours is not None, "the simulated step is in flight"
        stall_ns = ours.stall_ns[0] + ours.swap_ns + ours.remap_ns
        self.retold.append(
            Retold(
                real=real,
                start_ns=ours.start_ns,
                end_ns=ours.ends_ns[0],
                stall_ns=stall_ns,
                batch=batch,
                cycles=cycles,
            )
        )
        self._reach(real.end_ns)
        return _report(real, ours)

    def landed(self) -> tuple[tuple[int, int], ...]:
        """See ``Backend``: when the run found them complete."""
        landed, self._landed = tuple(self._landed), []
        self._world.landed()
        return landed

    def _reach(self, now_ns: int) -> None:
        self.now_ns = now_ns
        for model, n_layers in self._record.landed.get(now_ns, ()):
            layers = self._loading.get(model, [])
            if len(layers) < n_layers:
                raise Departed(f"at {now_ns} ns {n_layers} layers of model {model} landed that were never loaded")
            self._landed += [(model, layers.pop(0)) for _ in range(n_layers)]


def _report(real: RecordedStep, ours: StepReport) -> StepReport:
    """The step as it was; what of it was outside the layers as it is simulated, if that is not recorded."""
    busy_ns = real.lasted_ns - real.stall_ns
    rest_ns = min(ours.rest_ns[0], busy_ns) if real.rest_ns is None else real.rest_ns
    return StepReport(real.lane, real.start_ns, [real.end_ns], [busy_ns - rest_ns], [real.stall_ns], [rest_ns])
