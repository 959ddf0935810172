"""A journal that keeps everything a results folder would hold, row by row, however steps were submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Preemption, Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request as it was when it finished or was dropped."""

    request_id: int
    model: int
    state: State
    n_output: int
    first_token_ns: int | None
    last_token_ns: int | None
    finish_ns: int | None
    max_gap_ns: int
    n_preemptions: int
    n_recomputed: int
    n_hit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """What was composed when, by request ids."""

    at_ns: int
    lane: int
    rows: tuple[tuple[int, int, tuple[int, ...]], ...]
    preempted: tuple[tuple[int, Preemption], ...]
    dropped: tuple[int, ...]
    n_swapped_in: int
    n_swapped_out: int


@dataclass(frozen=True, slots=True)
class Ran:
    """One step, also where several were submitted as one."""

    start_ns: int
    end_ns: int
    lane: int
    n_prefill_tokens: int
    n_decode_seqs: int
    wait_ns: int
    stall_ns: int
    compute_ns: int
    rest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A question, its answer, and what became of it."""

    at_ns: int
    view: MemoryView
    decision: Decision
    changed: bool
    refused: bool


class Recorder:
    """Tables of one run.

    Attributes:
        compositions: what was composed when; it depends on how steps were submitted, the tables do not.
        events: what was composed, and what retired, in the order in which it was told, with request ids.
    """

    def __init__(self) -> None:
        self.requests: list[Ended] = []
        self.steps: list[Ran] = []
        self.gap_counts: Counter[tuple[int, GapCause, int]] = Counter()
        self.decisions: list[Decided] = []
        self.memory: list[tuple[int, HbmUse]] = []
        self.compositions: list[Composed] = []
        self.events: list[tuple[str, int, list[int]]] = []
        self.n_swapped_bytes = 0
        self._last_use: dict[int, HbmUse] = {}

    @property
    def tables(self) -> tuple[object, ...]:
        """All that results hold."""
        return self.requests, self.steps, self.gap_counts, self.decisions, self.memory

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        del scheduler
        self.events.append(("composed", now_ns, [seq.request.request_id for seq, _ in step.rows]))
        self.compositions.append(
            Composed(
                at_ns=now_ns,
                lane=lane,
                rows=tuple((seq.request.request_id, n_tokens, tuple(seq.blocks)) for seq, n_tokens in step.rows),
                preempted=tuple((seq.request.request_id, how) for seq, how in step.preempted),
                dropped=tuple(seq.request.request_id for seq in step.dropped),
                n_swapped_in=step.n_swapped_in,
                n_swapped_out=step.n_swapped_out,
            )
        )

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        self.n_swapped_bytes += batch.swap_in_bytes + batch.swap_out_bytes
        starts_ns = [report.start_ns, *report.ends_ns[:-1]]
        waits_ns = [report.swap_ns + report.remap_ns] + [0] * (len(starts_ns) - 1)
        parts = zip(waits_ns, report.stall_ns, report.compute_ns, report.rest_ns, strict=True)
        n_tokens = batch.work.n_prefill_tokens, batch.work.n_decode_seqs
        for start_ns, end_ns, part in zip(starts_ns, report.ends_ns, parts, strict=True):
            self.steps.append(Ran(start_ns, end_ns, lane, *n_tokens, *part))

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        for gap_ns in gaps_ns:
            self.gap_counts[model, cause, gap_ns] += n_requests

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        del scheduler
        self.events.append(("retired", now_ns, [seq.request.request_id for seq in seqs]))
        self.requests += [ended(lane, seq) for seq in seqs]

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        self.decisions.append(Decided(at_ns=now_ns, view=view, decision=decision, changed=changed, refused=refused))

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        for use in uses:
            if self._last_use.get(use.model) != use:
                self._last_use[use.model] = use
                self.memory.append((now_ns, use))


def ended(lane: int, seq: Sequence) -> Ended:
    """The row of a request."""
    return Ended(
        request_id=seq.request.request_id,
        model=lane,
        state=seq.state,
        n_output=seq.n_output,
        first_token_ns=seq.first_token_ns,
        last_token_ns=seq.last_token_ns,
        finish_ns=seq.finish_ns,
        max_gap_ns=seq.max_gap_ns,
        n_preemptions=seq.n_preemptions,
        n_recomputed=seq.n_recomputed,
        n_hit_tokens=seq.n_hit_tokens,
    )
