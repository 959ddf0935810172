"""vLLM's V1 engine core over one scheduler: with async scheduling a batch is composed while another one runs.

Source: vLLM 0.15.1, v1/engine/core.py, ``step_with_batch_queue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from policies.engine import Outcome
from policies.lane import TrueLengths
from policies.serving.scheduler import Step
from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.types import Arrival
from policies.view import Ask
from sim.linear import LinearTime
from sim.schedule_log_v1 import ScheduleLogV1


@dataclass(frozen=True, slots=True)
class _Batch:
    step: Step
    start_ns: int
    end_ns: int


class BatchQueue:
    """Composes and runs batches on a machine that is nothing but a step-time formula.

    Args:
        arrivals: nondecreasing in ``arrival_ns``.
    """

    def __init__(
        self, scheduler: VllmV1, arrivals: Iterator[Arrival], *, time: LinearTime, log: ScheduleLogV1, max_steps: int
    ) -> None:
        self.now_ns = 0
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._time = time
        self._log = log
        self._max_steps = max_steps
        self._truth = TrueLengths()
        self._batches: deque[_Batch] = deque()
        self._free_ns = 0

    def run(self) -> Outcome:
        """Serve every arrival to its end, if it has one."""
        while True:
            self._take()
            if self._log.n_steps >= self._max_steps:
                return Outcome.STOPPED
            step = self._compose()
            if step.runs and len(self._batches) <= self._scheduler.n_steps_ahead:
                continue
            if self._batches:
                self._finish(self._batches.popleft())
            elif not step.acted:
                if self._next is None:
                    return Outcome.STUCK if self._scheduler.n_live else Outcome.DONE
                self.now_ns = self._next.request.arrival_ns

    def _take(self) -> None:
        while self._next is not None and self._next.request.arrival_ns <= self.now_ns:
            self._truth.learn(self._next)
            self._scheduler.add(Sequence(self._next.request))
            self._next = next(self._arrivals, None)

    def _compose(self) -> Step:
        if not self._scheduler.n_live:
            return Step()
        step = self._scheduler.compose(self.now_ns, _no_relief)
        self._log.composed(self.now_ns, step)
        if step.runs:
            start_ns = max(self.now_ns, self._free_ns)
            self._free_ns = start_ns + self._time.of(sum(n for _, n in step.rows), len(step.rows))
            self._batches.append(_Batch(step, start_ns, self._free_ns))
        return step

    def _finish(self, batch: _Batch) -> None:
        self.now_ns = batch.end_ns
        sampled = [prefill.seq for prefill in batch.step.prefills if prefill.samples] + list(batch.step.decodes)
        stopped = [seq for seq in sampled if seq.finish_ns is None and self._truth.n_left(seq) == 1]
        self._scheduler.ran(batch.step, 1, batch.start_ns, stopped)
        for seq in sampled:
            if seq.first_token_ns is None:
                seq.first_token_ns = batch.end_ns
        self._log.ran()
        ended = self._scheduler.retire()
        for seq in ended:
            seq.finish_ns = batch.end_ns
        if ended:
            self._log.retired(self.now_ns, ended)


def _no_relief(n_missing: int, ask: Ask) -> int:
    del n_missing, ask
    return 0
