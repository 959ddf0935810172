"""When each token came, and why it was late: gaps between the tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from operator import sub
from typing import Final

from policies.backend import StepReport
from policies.journal import GapCause, Journal
from policies.serving.pace import Pace
from policies.serving.sequence import Sequence

PREEMPTION: Final = GapCause.PREEMPTION  # looked up once: an enum's attributes are slow
SWITCH: Final = GapCause.SWITCH
PREFILL: Final = GapCause.PREFILL
FETCH: Final = GapCause.FETCH
DECODE: Final = GapCause.DECODE


class TokenClock:
    """Dates the tokens of one model's sequences and tells the journal the gaps between them.

    A gap has one cause: the first of ``GapCause`` that applies to it.
    """

    def __init__(self, model: int, journal: Journal) -> None:
        self._model = model
        self._journal = journal
        self._resumed_ns = 0
        self._prefilled_ns = 0

    def resumed(self, now_ns: int) -> None:
        """The model takes its turn after another one ran."""
        self._resumed_ns = now_ns

    def prefilled(self, end_ns: int) -> None:
        """A step with prefill tokens ended, whether or not it sampled; told before the tokens that it gave."""
        self._prefilled_ns = end_ns

    def sampled(self, seqs: Seq[Sequence], report: StepReport) -> None:
        """Each of these, which keep no pace, got one token at the end of each step of the report."""
        ends_ns = report.ends_ns
        self._first(seqs, report)
        if len(ends_ns) > 1:
            gaps_ns = list(map(sub, ends_ns[1:], ends_ns))
            largest_ns = self._alike(gaps_ns, report.stall_ns[1:], len(seqs))
            for seq in seqs:
                seq.max_gap_ns = max(seq.max_gap_ns, largest_ns)
                seq.last_token_ns = ends_ns[-1]

    def sampled_in_step(self, pace: Pace, joined: Seq[Sequence], report: StepReport, n_steps: int) -> None:
        """Every member of a pace got one token at the end of each of the first ``n_steps`` steps.

        For those who ``joined`` it is the first in which they keep it: their first gap is their own.
        """
        ends_ns, stalls_ns, n_members = report.ends_ns, report.stall_ns, pace.n_members
        last_ns, n_apart = pace.last_token_ns, 0
        cause = self._cause(last_ns, report)
        if joined or cause is not DECODE:
            n_others, first_ns = n_members - len(joined), ends_ns[0] - last_ns
            if n_others:
                self._journal.gaps(self._model, cause, [first_ns], n_others)
                pace.note_gap(first_ns)
            self._first(joined, report)
            for seq in joined:
                seq.date_in_step(pace)
            last_ns, n_apart = ends_ns[0], 1
        gaps_ns: list[int] = []
        largest_ns = 0
        for nth in range(n_apart, n_steps):
            gap_ns = ends_ns[nth] - last_ns
            gaps_ns.append(gap_ns)
            if gap_ns > largest_ns:
                largest_ns = gap_ns
            last_ns = ends_ns[nth]
        if gaps_ns:
            if any(stalls_ns):
                self._alike(gaps_ns, stalls_ns[n_apart:n_steps], n_members)
            else:
                self._journal.gaps(self._model, DECODE, gaps_ns, n_members)
            pace.note_gap(largest_ns)
        pace.last_token_ns = ends_ns[n_steps - 1]

    def sampled_behind(self, pace: Pace, report: StepReport) -> None:
        """Every member that is left got another token in the last step of a report whose others are dated."""
        gap_ns = report.ends_ns[-1] - pace.last_token_ns
        pace.note_gap(self._alike([gap_ns], report.stall_ns[-1:], pace.n_members))
        pace.last_token_ns = report.ends_ns[-1]

    def _first(self, seqs: Seq[Sequence], report: StepReport) -> None:
        """Date the token of the report's first step in each sequence by itself."""
        at_ns = report.ends_ns[0]
        n_seqs: dict[tuple[int, bool], int] = {}  # by (time of the token before, was preempted since)
        n_alike, alike_ns, alike_preempted = 0, 0, False  # of the last ones, which mostly are all
        for seq in seqs:
            was_preempted = seq.was_preempted
            last_ns = seq.date(at_ns)
            if last_ns is None:
                continue
            if n_alike and (last_ns != alike_ns or was_preempted != alike_preempted):
                before = alike_ns, alike_preempted
                n_seqs[before] = n_seqs.get(before, 0) + n_alike
                n_alike = 0
            n_alike, alike_ns, alike_preempted = n_alike + 1, last_ns, was_preempted
        if n_alike:
            before = alike_ns, alike_preempted
            n_seqs[before] = n_seqs.get(before, 0) + n_alike
        for (last_ns, was_preempted), n in n_seqs.items():
            self._tell_first(at_ns, last_ns, was_preempted, n, report)

    def _tell_first(self, at_ns: int, last_ns: int, was_preempted: bool, n_seqs: int, report: StepReport) -> None:
        """Tell the gap before the report's first token, of sequences to which the same has happened."""
        cause = PREEMPTION if was_preempted else self._cause(last_ns, report)
        self._journal.gaps(self._model, cause, (at_ns - last_ns,), n_seqs)

    def _cause(self, last_ns: int, report: StepReport) -> GapCause:
        """Why the token of the report's first step came as late after ``last_ns`` as it did, preemption apart."""
        if self._resumed_ns > last_ns:
            return SWITCH
        if self._prefilled_ns > last_ns:
            return PREFILL
        return FETCH if report.stall_ns[0] or report.swap_ns or report.remap_ns else DECODE

    def _alike(self, gaps_ns: list[int], stalls_ns: list[int], n_seqs: int) -> int:
        """Tell gaps that are each the duration of one step, which may have stalled; returns the largest."""
        if any(stalls_ns):
            steps = list(zip(gaps_ns, stalls_ns, strict=True))
            stalled = [gap_ns for gap_ns, stall_ns in steps if stall_ns]
            self._journal.gaps(self._model, FETCH, stalled, n_seqs)
            smooth = [gap_ns for gap_ns, stall_ns in steps if not stall_ns]
            if smooth:
                self._journal.gaps(self._model, DECODE, smooth, n_seqs)
        else:
            self._journal.gaps(self._model, DECODE, gaps_ns, n_seqs)
        largest_ns = 0
        for gap_ns in gaps_ns:  # compiled, a third of what ``max`` takes
            if gap_ns > largest_ns:
                largest_ns = gap_ns
        return largest_ns
