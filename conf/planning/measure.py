"""What a whole run gave: latencies, memory lent, where the time went."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from conf.planning.slo import Slo, SloWatch
from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import HbmUse
from policies.serving.scheduler import Scheduler
from policies.serving.sequence import Sequence, State
from policies.types import NS_PER_S
from policies.view import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run.

    Attributes:
        kept_share: share of the requests that had what was promised.
        ttft_missed, tbt_missed: shares that missed the one or the other.
        ttft_s, tbt_s: at P50, P90 and P99 over requests; of the second the mean gap.
        tokens_per_s: output tokens over the makespan.
        lent_bytes: mean over the makespan, ``peak_lent_bytes`` the most.
        n_lends: changes of target that lent.
        busy_share, stall_share: of the makespan: steps; in them waits for fetched layers.
        n_preemptions: of all requests.
    """

    kept_share: float
    ttft_missed: float
    tbt_missed: float
    ttft_s: tuple[float, float, float]
    tbt_s: tuple[float, float, float]
    tokens_per_s: float
    lent_bytes: float
    peak_lent_bytes: int
    n_lends: int
    busy_share: float
    stall_share: float
    n_preemptions: int


class Measuring(SloWatch):
    """Keeps what ``Measured`` tells; the run goes on to its end."""

    def __init__(self, slo: Slo, n_requests: int) -> None:
        super().__init__(slo, n_requests, settles=False)
        self._ttfts_ns: list[int] = []
        self._gaps_ns: list[int] = []
        self._n_tokens = self._n_preemptions = self._busy_ns = self._stall_ns = 0
        self._end_ns = 0
        self._lent = _Level()
        self._n_lends = 0

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Keep latencies of those that are gone."""
        super().retired(lane, now_ns, seqs, scheduler)
        for seq in seqs:
            self._n_preemptions += seq.n_preemptions
            if seq.state is State.FINISHED and seq.first_token_ns is not None and seq.last_token_ns is not None:
                self._n_tokens += seq.n_output
                self._ttfts_ns.append(seq.first_token_ns - seq.request.arrival_ns)
                if seq.n_output > 1:
                    self._gaps_ns.append((seq.last_token_ns - seq.first_token_ns) // (seq.n_output - 1))

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:  # noqa: ARG002
        """Add up where the time goes."""
        self._end_ns = report.ends_ns[-1]
        self._busy_ns += self._end_ns - report.start_ns
        self._stall_ns += sum(report.stall_ns) + report.swap_ns + report.remap_ns

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Count what is lent."""
        super().decided(now_ns, view, decision, changed=changed, refused=refused)
        if changed:
            before = sum(len(model.residency.loans) for model in view.models)
            self._n_lends += sum(len(target.loans) for target in decision.targets) > before

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Follow how much is lent."""
        self._lent.set(now_ns, sum(use.lent_bytes for use in uses))

    def result(self) -> Measured:
        """Sum up, at the end of the run."""
        makespan_ns = max(1, self._end_ns)
        n = self._n_requests
        return Measured(
            kept_share=self.n_met / n,
            ttft_missed=self.n_ttft / n,
            tbt_missed=self.n_tbt / n,
            ttft_s=_quantiles_s(self._ttfts_ns),
            tbt_s=_quantiles_s(self._gaps_ns),
            tokens_per_s=self._n_tokens * NS_PER_S / makespan_ns,
            lent_bytes=self._lent.mean(makespan_ns),
            peak_lent_bytes=self._lent.peak,
            n_lends=self._n_lends,
            busy_share=self._busy_ns / makespan_ns,
            stall_share=self._stall_ns / makespan_ns,
            n_preemptions=self._n_preemptions,
        )


class _Level:
    """A number that changes now and then: its mean over time and its peak."""

    def __init__(self) -> None:
        self.peak = 0
        self._since_ns = self._value = self._area = 0

    def set(self, now_ns: int, value: int) -> None:
        self._area += self._value * (now_ns - self._since_ns)
        self._since_ns, self._value = now_ns, value
        self.peak = max(self.peak, value)

    def mean(self, end_ns: int) -> float:
        return (self._area + self._value * max(0, end_ns - self._since_ns)) / end_ns


def _quantiles_s(durations_ns: Seq[int]) -> tuple[float, float, float]:
    """P50, P90 and P99, each a value that occurred (``traces/results/metrics.py``); 0 where there are none."""
    if not durations_ns:
        return 0.0, 0.0, 0.0
    found = np.quantile(np.array(durations_ns), [0.5, 0.9, 0.99], method="inverted_cdf")
    p50, p90, p99 = (float(each) / NS_PER_S for each in found)
    return p50, p90, p99
