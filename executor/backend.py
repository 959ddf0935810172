"""The real world: steps, copies and mappings on a device, in real time.

The present is the end of the last step that was reported, or the moment to which the loop
let time pass: what the host does in between (composing, asking the policy, submitting)
belongs to the step that follows, as ``rest_ns``. So every decision follows from the
reports alone, and a run can be replayed from them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from executor.clock import Awaited, Clock
from executor.lane import StepTimes
from policies.backend import Batch, Change, StepReport
from policies.memory.ops import MoveBlocks, Op


class Step(Awaited, Protocol):
    """A step that the device was asked for."""

    def finish(self) -> StepTimes:
        """Take what it gave, once; it is done."""
        ...


class Lane(Protocol):
    """One model on the device."""

    def n_steps_with_room(self, batch: Batch) -> int:
        """How often the batch can run before a sequence needs a block that it has not been given; at least 1."""
        ...

    def launch(self, batch: Batch, nth: int) -> Step:
        """Ask for the ``nth`` repetition of a batch, counted from 0."""
        ...

    def save_victims(self) -> None:
        """See to it that what swapped sequences left in their blocks is kept."""
        ...

    def moved(self, moves: Seq[tuple[int, int]]) -> None:
        """Blocks move within HBM: (from, to)."""
        ...


class Memory(Protocol):
    """The memory that changes hands."""

    def carry_out(self, ops: Seq[Op]) -> None:
        """Carry out ops, all of them or none."""
        ...

    def landed(self) -> list[tuple[int, int]]:
        """(model, layer) of loads that are complete and were not told before, in order."""
        ...


@dataclass(slots=True, kw_only=True)
class _Submission:
    """A batch under way: its present step, and what is known of those before."""

    lane: int
    batch: Batch
    n_steps: int
    stop_ns: int
    start_ns: int
    remap_ns: int
    step: Step
    swap_ns: int = 0
    ends_ns: list[int] = field(default_factory=list[int])
    compute_ns: list[int] = field(default_factory=list[int])
    stall_ns: list[int] = field(default_factory=list[int])
    rest_ns: list[int] = field(default_factory=list[int])
    is_over: bool = False

    def ended(self, end_ns: int, times: StepTimes) -> None:
        """Enter the end of the present step. What was not measured on the device is the rest."""
        if not self.ends_ns:
            self.swap_ns = times.swap_ns
            begin_ns = self.start_ns + self.remap_ns + self.swap_ns
        else:
            begin_ns = self.ends_ns[-1]
        end_ns = max(end_ns, begin_ns)
        stall_ns = min(times.stall_ns, end_ns - begin_ns)
        compute_ns = min(times.compute_ns, end_ns - begin_ns - stall_ns)  # two clocks: they may differ a little
        self.ends_ns.append(end_ns)
        self.compute_ns.append(compute_ns)
        self.stall_ns.append(stall_ns)
        self.rest_ns.append(end_ns - begin_ns - stall_ns - compute_ns)

    def report(self) -> StepReport:
        """All of it."""
        return StepReport(
            lane=self.lane,
            start_ns=self.start_ns,
            ends_ns=self.ends_ns,
            compute_ns=self.compute_ns,
            stall_ns=self.stall_ns,
            rest_ns=self.rest_ns,
            swap_ns=self.swap_ns,
            remap_ns=self.remap_ns,
        )


class ExecutorBackend:
    """Carries out what the loop asks for on a device.

    A step of a submission is asked of the device when the one before it has ended, so the
    host waits once a step. Of a submission no more steps run than there are KV slots for:
    the blocks of later repetitions are taken only when it is accounted.

    Attributes:
        now_ns: the present, see above.
    """

    def __init__(self, lanes: Seq[Lane], memory: Memory, clock: Clock) -> None:
        self.now_ns = 0
        self._lanes = tuple(lanes)
        self._memory = memory
        self._clock = clock
        self._in_flight: dict[int, _Submission] = {}
        self._landed: list[tuple[int, int]] = []
        self._remap_ns = 0

    def apply(self, change: Change) -> None:
        """Carry out the ops; the host's time for it delays the next step.

        Raises:
            HbmOverdrawn: the device lacks memory for it; nothing was changed.
            DriverError: the device failed; nothing was changed, and the run cannot go on.
        """
        began_ns = self._clock.now_ns
        for lane in self._lanes:
            lane.save_victims()
        self._memory.carry_out(change.ops)
        for op in change.ops:
            if isinstance(op, MoveBlocks):
                self._lanes[op.model].moved(op.moves)
        self._remap_ns += self._clock.now_ns - began_ns

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Ask the device for the first step."""
        if n_ahead:
            raise ValueError(f"lane {lane}: nothing is launched ahead here; set serving.async_scheduling=false")
        if lane in self._in_flight:
            raise ValueError(f"lane {lane} is busy; take its report first")
        if n_steps > 1 and batch.work.n_prefill_tokens:
            raise ValueError(f"lane {lane}: a batch with prefill tokens cannot repeat")
        if n_steps > 1:
            n_steps = min(n_steps, self._lanes[lane].n_steps_with_room(batch))
        remap_ns = min(self._remap_ns, self._clock.now_ns - self.now_ns)  # what was done while idle delays nothing
        self._remap_ns = 0
        self._in_flight[lane] = _Submission(
            lane=lane,
            batch=batch,
            n_steps=n_steps,
            stop_ns=stop_ns,
            start_ns=self.now_ns,
            remap_ns=max(0, remap_ns),
            step=self._lanes[lane].launch(batch, 0),
        )

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Wait for the next finished submission, else until ``until_ns``."""
        if until_ns is None and not self._in_flight:
            raise ValueError("nothing is in flight; name a time to advance to")
        while True:
            self._collect()
            over = [each for each in self._in_flight.values() if each.is_over]
            first = min(over, key=lambda each: each.ends_ns[-1], default=None)
            if first is not None and (until_ns is None or first.ends_ns[-1] <= until_ns):
                del self._in_flight[first.lane]
                self.now_ns = max(self.now_ns, first.ends_ns[-1])
                return first.report()
            if until_ns is not None and (first is not None or self._clock.now_ns >= until_ns):
                self.now_ns = max(self.now_ns, until_ns)
                return None
            self._clock.wait([each.step for each in self._in_flight.values() if not each.is_over], until_ns)

    def landed(self) -> tuple[tuple[int, int], ...]:
        """Loads found complete when the present was last reached."""
        landed, self._landed = tuple(self._landed), []
        return landed

    def _collect(self) -> None:
        """Enter the steps that have ended, and ask for the next of their submissions."""
        for submission in self._in_flight.values():
            while not submission.is_over and submission.step.is_done():
                submission.ended(self._clock.now_ns, submission.step.finish())
                self._landed += self._memory.landed()
                n_done = len(submission.ends_ns)
                is_due = submission.ends_ns[-1] >= submission.stop_ns or bool(self._landed)
                if n_done == submission.n_steps or is_due:
                    submission.is_over = True
                else:
                    submission.step = self._lanes[submission.lane].launch(submission.batch, n_done)
        if not self._in_flight:
            self._landed += self._memory.landed()
