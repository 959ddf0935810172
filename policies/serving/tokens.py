"""When each token came, and why it was late: gaps between the tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import pairwise

from policies.backend import StepReport
from policies.journal import GapCause, Journal
from policies.serving.pace import Pace
from policies.serving.sequence import Sequence


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

    def sampled(self, seqs: Seq[Sequence], report: StepReport, *, has_prefill: bool) -> None:
        """Every one of ``seqs`` got one token at the end of each step of the report."""
        self._first(seqs, report, has_prefill)
        if len(report.ends_ns) > 1:
            largest_ns = self._later(report, len(seqs))
            for seq in seqs:
                seq.max_gap_ns = max(seq.max_gap_ns, largest_ns)
                seq.last_token_ns = report.ends_ns[-1]

    def sampled_in_step(self, pace: Pace, joined: Seq[Sequence], report: StepReport, *, has_prefill: bool) -> None:
        """Every member of a pace got one token at the end of each step; for some it is the first since they joined."""
        ends_ns, n_others = report.ends_ns, pace.n_members - len(joined)
        if n_others:
            last_ns = pace.last_token_ns
            gap_ns = ends_ns[0] - last_ns
            self._journal.gaps(self._model, self._cause(last_ns, report, has_prefill), (gap_ns,), n_others)
            pace.note_gap(gap_ns)
        if joined:
            self._first(joined, report, has_prefill)
            for seq in joined:
                seq.date_in_step(pace)
        if len(ends_ns) > 1:
            pace.note_gap(self._later(report, pace.n_members))
        pace.last_token_ns = ends_ns[-1]

    def prefilled(self, end_ns: int) -> None:
        """A step with prefill tokens ended, whether or not it sampled."""
        self._prefilled_ns = end_ns

    def _first(self, seqs: Seq[Sequence], report: StepReport, has_prefill: bool) -> None:
        """Date the token of the report's first step in each sequence by itself."""
        first_ns = report.ends_ns[0]
        groups: dict[tuple[int, GapCause], int] = {}
        for seq in seqs:
            last_ns = seq.last_token_ns
            if last_ns is None:
                seq.first_token_ns = first_ns
            else:
                gap_ns = first_ns - last_ns
                cause = GapCause.PREEMPTION if seq.was_preempted else self._cause(last_ns, report, has_prefill)
                groups[gap_ns, cause] = groups.get((gap_ns, cause), 0) + 1
                seq.max_gap_ns = max(seq.max_gap_ns, gap_ns)
            seq.last_token_ns = first_ns
            seq.was_preempted = False
        for (gap_ns, cause), n in groups.items():
            self._journal.gaps(self._model, cause, (gap_ns,), n)

    def _cause(self, last_ns: int, report: StepReport, has_prefill: bool) -> GapCause:
        if self._resumed_ns > last_ns:
            return GapCause.SWITCH
        if has_prefill or self._prefilled_ns > last_ns:
            return GapCause.PREFILL
        waited_ns = report.stall_ns[0] + report.swap_ns + report.remap_ns
        return GapCause.FETCH if waited_ns else GapCause.DECODE

    def _later(self, report: StepReport, n_seqs: int) -> int:
        """Tell the gap of every step but the first, which is its duration; returns the largest."""
        ends_ns, stalls_ns = report.ends_ns, report.stall_ns
        gaps_ns = [after - before for before, after in pairwise(ends_ns)]
        if any(stalls_ns):
            stalled = [gap for gap, stall in zip(gaps_ns, stalls_ns[1:], strict=True) if stall]
            smooth = [gap for gap, stall in zip(gaps_ns, stalls_ns[1:], strict=True) if not stall]
            if stalled:
                self._journal.gaps(self._model, GapCause.FETCH, stalled, n_seqs)
            if smooth:
                self._journal.gaps(self._model, GapCause.DECODE, smooth, n_seqs)
        else:
            self._journal.gaps(self._model, GapCause.DECODE, gaps_ns, n_seqs)
        return max(gaps_ns)
