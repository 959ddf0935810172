"""When each token came, and why it was late: gaps between the tokens of a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from policies.backend import StepReport
from policies.journal import GapCause, Journal
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
        first_ns, last_ns = report.ends_ns[0], report.ends_ns[-1]
        later = [after - before for before, after in zip(report.ends_ns, report.ends_ns[1:], strict=False)]
        largest_later = max(later, default=0)
        groups: Counter[tuple[int, GapCause]] = Counter()
        for seq in seqs:
            if seq.last_token_ns is None:
                seq.first_token_ns = first_ns
            else:
                gap_ns = first_ns - seq.last_token_ns
                groups[gap_ns, self._cause(seq, report, has_prefill)] += 1
                seq.max_gap_ns = max(seq.max_gap_ns, gap_ns)
            seq.max_gap_ns = max(seq.max_gap_ns, largest_later)
            seq.last_token_ns = last_ns
            seq.was_preempted = False
        for (gap_ns, cause), n in groups.items():
            self._journal.gaps(self._model, cause, [gap_ns], n)
        self._tell_later(later, report.stall_ns[1:], len(seqs))

    def prefilled(self, end_ns: int) -> None:
        """A step with prefill tokens ended, whether or not it sampled."""
        self._prefilled_ns = end_ns

    def _cause(self, seq: Sequence, report: StepReport, has_prefill: bool) -> GapCause:
        assert seq.last_token_ns is not None
        if seq.was_preempted:
            return GapCause.PREEMPTION
        if self._resumed_ns > seq.last_token_ns:
            return GapCause.SWITCH
        if has_prefill or self._prefilled_ns > seq.last_token_ns:
            return GapCause.PREFILL
        waited_ns = report.stall_ns[0] + report.swap_ns + report.remap_ns
        return GapCause.FETCH if waited_ns else GapCause.DECODE

    def _tell_later(self, gaps_ns: Seq[int], stalls_ns: Seq[int], n_seqs: int) -> None:
        stalled = [gap for gap, stall in zip(gaps_ns, stalls_ns, strict=True) if stall]
        smooth = [gap for gap, stall in zip(gaps_ns, stalls_ns, strict=True) if not stall]
        if stalled:
            self._journal.gaps(self._model, GapCause.FETCH, stalled, n_seqs)
        if smooth:
            self._journal.gaps(self._model, GapCause.DECODE, smooth, n_seqs)
