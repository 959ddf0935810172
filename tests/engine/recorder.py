"""A journal that keeps everything a results folder would hold, row by row, however steps were submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView

Row = tuple[object, ...]


class Recorder:
    """Tables of one run.

    Attributes:
        compositions: what was composed when; it depends on how steps were submitted, the others do not.
    """

    def __init__(self) -> None:
        self.requests: list[Row] = []
        self.steps: list[Row] = []
        self.gap_counts: Counter[tuple[int, GapCause, int]] = Counter()
        self.decisions: list[Row] = []
        self.memory: list[Row] = []
        self.compositions: list[Row] = []
        self._last_use: dict[int, HbmUse] = {}

    @property
    def tables(self) -> tuple[object, ...]:
        """All that results hold."""
        return self.requests, self.steps, self.gap_counts, self.decisions, self.memory

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        del scheduler
        rows = tuple((seq.request.request_id, n_tokens, tuple(seq.blocks)) for seq, n_tokens in step.rows)
        preempted = tuple((seq.request.request_id, how) for seq, how in step.preempted)
        dropped = tuple(seq.request.request_id for seq in step.dropped)
        self.compositions.append((now_ns, lane, rows, preempted, dropped, step.n_swapped_in, step.n_swapped_out))

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        starts_ns = [report.start_ns, *report.ends_ns[:-1]]
        waits_ns = [report.swap_ns + report.remap_ns] + [0] * (len(starts_ns) - 1)
        rows = zip(starts_ns, report.ends_ns, waits_ns, report.stall_ns, report.compute_ns, report.rest_ns, strict=True)
        n_tokens = batch.work.n_prefill_tokens, batch.work.n_decode_seqs
        self.steps += [(start_ns, lane, n_tokens, *others) for start_ns, *others in rows]

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        for gap_ns in gaps_ns:
            self.gap_counts[model, cause, gap_ns] += n_requests

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        del now_ns, scheduler  # a request's row has its own times
        self.requests += [_request_row(lane, seq) for seq in seqs]

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        self.decisions.append((now_ns, view, decision, changed, refused))

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        for use in uses:
            if self._last_use.get(use.model) != use:
                self._last_use[use.model] = use
                self.memory.append((now_ns, use))


def _request_row(lane: int, seq: Sequence) -> Row:
    request = seq.request
    return (
        request.request_id,
        lane,
        seq.state,
        seq.n_output,
        seq.first_token_ns,
        seq.last_token_ns,
        seq.finish_ns,
        seq.max_gap_ns,
        seq.n_preemptions,
        seq.n_recomputed,
        seq.n_hit_tokens,
    )
