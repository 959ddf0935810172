"""What a finished step gives the sequences of one model: their tokens, when these came, and who stops with them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from heapq import heappop, heappush
from typing import Final

from policies.backend import StepReport
from policies.journal import Journal
from policies.lane import Lane, TrueLengths
from policies.serving.pace import Pace
from policies.serving.scheduler import Step
from policies.serving.sequence import Sequence, State
from policies.serving.tokens import TokenClock

NEVER: Final = 2**62

RUNNING: Final = State.RUNNING  # looked up once: an enum's attributes are slow
FINISHED: Final = State.FINISHED


class NextEnds:
    """When the sequences of one model that keep a pace will have produced their last token.

    Attributes:
        next_at: the pace's count of tokens at the next end.
    """

    def __init__(self, truth: TrueLengths) -> None:
        self.next_at = NEVER
        self._truth = truth
        self._pace: Pace | None = None
        self._ends: list[tuple[int, int, Sequence]] = []  # (the pace's count at its end, order of joining, who)
        self._n_joined = 0

    def join(self, pace: Pace, seqs: Seq[Sequence]) -> None:
        """Sequences joined the pace; if it is a new one, the old one is over. Who has ended left by itself."""
        if pace is not self._pace:
            self._pace = pace
            self._ends = []
        for seq in seqs:
            heappush(self._ends, (pace.n_tokens + self._truth.n_left(seq), self._n_joined, seq))
            self._n_joined += 1
        self.next_at = self._ends[0][0] if self._ends else NEVER

    def take(self, n_tokens: int) -> list[Sequence]:
        """Those who end by the pace's count ``n_tokens``, in execution order."""
        taken: list[Sequence] = []
        while self._ends and self._ends[0][0] <= n_tokens:
            taken.append(heappop(self._ends)[2])
        self.next_at = self._ends[0][0] if self._ends else NEVER
        return taken


class Progress:
    """Enters the finished steps of one lane into its scheduler, its sequences and the journal.

    It reads true lengths: for the engine alone.
    """

    def __init__(self, lane: Lane, truth: TrueLengths, journal: Journal) -> None:
        self.clock = TokenClock(lane.index, journal)
        self._scheduler = lane.scheduler
        self._truth = truth
        self._ends = NextEnds(truth)
        self._joined: Seq[Sequence] = ()

    def joined(self, step: Step) -> None:
        """The step is about to run: note who is new to its pace, unless a stop check has come in between."""
        assert step.pace is not None
        self._joined = [seq for seq in step.joined if seq.state is RUNNING]
        self._ends.join(step.pace, self._joined)

    def n_to_next_end(self, step: Step) -> int:
        """Decode steps up to the first in which a sequence gets its last token."""
        if step.pace is not None:
            return self._ends.next_at - step.pace.n_tokens
        return min(self._truth.n_left(seq) if seq.state is RUNNING else 1 for seq in step.decodes)

    def enter(self, step: Step, report: StepReport, n_steps: int) -> bool:
        """Give the tokens of the report's first ``n_steps`` steps; whether there were any."""
        pace, joined, self._joined = step.pace, self._joined, ()
        apart = _counted_apart(step) if pace is None or step.prefills else ()
        stopped = [seq for seq in apart if self._truth.n_left(seq) == n_steps] if apart else []
        if pace is not None and self._ends.next_at <= pace.n_tokens + n_steps:
            stopped += self._ends.take(pace.n_tokens + n_steps)
        last_composed_ns = report.ends_ns[n_steps - 2] if n_steps > 1 else report.start_ns
        self._scheduler.ran(step, n_steps, last_composed_ns, stopped)
        if step.prefills:
            self.clock.prefilled(report.ends_ns[0])
        if apart:
            self.clock.sampled(apart, report)
        if pace is None or not pace.n_members:
            return bool(apart)
        self.clock.sampled_in_step(pace, joined, report, n_steps)
        return True

    def enter_behind(self, step: Step, report: StepReport) -> bool:
        """Give tokens for the report's last step, composed before those who ended had left; whether there were any."""
        pace = step.pace
        assert pace is not None
        self._scheduler.ran(step, 1, report.ends_ns[-2], self._ends.take(pace.n_tokens + 1))
        if not pace.n_members:
            return False
        self.clock.sampled_behind(pace, report)
        return True


def _counted_apart(step: Step) -> list[Sequence]:
    """Those whose token counts for each by itself: their prompt is done, or they decode without keeping a pace.

    Asynchronously, a sequence whose stop check came after this step was composed runs in it for nothing. One that
    was preempted since (V1) gets its token.
    """
    seqs = [prefill.seq for prefill in step.prefills if prefill.samples]
    if step.pace is None:
        seqs += [seq for seq in step.decodes if seq.state is not FINISHED]
    return seqs
