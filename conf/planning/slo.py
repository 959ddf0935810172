"""What a server promises, and whether it has kept it: settled as soon as no later request can change it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import ceil
from typing import Literal

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.types import NS_PER_S
from policies.view import MemoryView

LOOKED_EVERY = 64
"""Steps after which waiting requests are looked at for those that are overdue: speed only."""


OVERLOAD = 0.05
"""Share by which a rate may exceed what is served without being noticed: as fine as rates are promised to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A promise: so large a share of all requests has its first token and its tokens in time.

    Attributes:
        ttft_s: first token minus arrival, at most.
        tbt_s: between tokens, at most.
        share: of the requests that must have both, in (0, 1]. DistServe (arXiv 2401.09670) takes 0.9.
        gap: which gap of a request is meant: its ``mean`` gap (TPOT), or its ``largest``.

    Raises:
        ValueError: a number is out of range.
    """

    ttft_s: float
    tbt_s: float
    share: float = 0.9
    gap: Literal["mean", "largest"] = "mean"

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tbt_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} s must be above 0")
        if not 0 < self.share <= 1:
            raise ValueError(f"share={self.share} is outside (0, 1]")

    def misses(self, seq: Sequence) -> tuple[bool, bool]:
        """Whether a request that is gone missed its time to the first token, and its time between tokens.

        One that was dropped has missed both.
        """
        if seq.state is not State.FINISHED or seq.first_token_ns is None or seq.last_token_ns is None:
            return True, True
        n_gaps = seq.n_output - 1
        gap_ns = 0
        if n_gaps:
            gap_ns = (seq.last_token_ns - seq.first_token_ns) // n_gaps if self.gap == "mean" else seq.max_gap_ns
        ttft_ns = seq.first_token_ns - seq.request.arrival_ns
        return ttft_ns > self.ttft_s * NS_PER_S, gap_ns > self.tbt_s * NS_PER_S

    def most_misses(self, n_requests: int) -> int:
        """Requests of so many that may miss it."""
        return n_requests - ceil(self.share * n_requests - 1e-9)  # 0.9 * 10 is 9.000000000000002 for some shares

    @property
    def span_s(self) -> float:
        """How long requests must come for an overload of ``OVERLOAD`` to break it.

        A queue that grows by that share of the time delays a request after t seconds by as much of t, and the last
        ``share`` of the requests, at least, must be late.
        """
        return self.ttft_s / (OVERLOAD * self.share)

    @property
    def label(self) -> str:
        """The promise, for a person."""
        return (
            f"{self.share:.4g} of the requests with TTFT <= {self.ttft_s:g} s and {self.gap} TBT <= "
            f"{self.tbt_s * 1000:g} ms"
        )


class Settled(Exception):
    """No later request can change whether the promise is kept: the rest of the run is not needed."""


class SloWatch:
    """Counts misses while a run goes on, and ends it when they settle the matter.

    Args:
        n_requests: all that will arrive.
        settles: whether to end the run early.

    Attributes:
        n_ttft, n_tbt: requests that missed the one or the other.
        cap_in_reach: share of a model's layers, the most of any, that would have been lent with one layer more: a
            cap of as much has not changed the run.
    """

    def __init__(self, slo: Slo, n_requests: int, *, settles: bool = True) -> None:
        self.cap_in_reach = 0.0
        self.n_met = self.n_missed = self.n_ttft = self.n_tbt = 0
        self._slo = slo
        self._most = slo.most_misses(n_requests)
        self._n_requests = n_requests
        self._settles = settles
        self._ttft_ns = round(slo.ttft_s * NS_PER_S)
        self._n_overdue: dict[int, int] = {}
        self._n_composed = 0

    @property
    def is_kept(self) -> bool:
        """Whether the promise is kept, now that the run is over."""
        return self._n_requests - self.n_met <= self._most

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Look now and then for requests that wait longer than promised."""
        self._n_composed += 1
        if not self._settles or self._n_composed % LOOKED_EVERY:
            return
        due_ns = now_ns - self._ttft_ns
        self._n_overdue[lane] = sum(
            1 for seq in scheduler.live() if seq.first_token_ns is None and seq.request.arrival_ns < due_ns
        )
        self._settle()

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:  # noqa: ARG002
        """Count those that are gone; how many are overdue is counted anew at the next look."""
        for seq in seqs:
            ttft, tbt = self._slo.misses(seq)
            self.n_ttft += ttft
            self.n_tbt += tbt
            self.n_missed += ttft or tbt
            self.n_met += not (ttft or tbt)
        self._n_overdue[lane] = 0
        if self._settles:
            self._settle()

    def _settle(self) -> None:
        if self.n_missed + sum(self._n_overdue.values()) > self._most:
            raise Settled
        if self._n_requests - self.n_met <= self._most:
            raise Settled

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Keep nothing."""

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Keep nothing."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Note how much is lent of any model."""
        del now_ns, refused
        if changed:
            for model, target in zip(view.models, decision.targets, strict=True):
                self.cap_in_reach = max(self.cap_in_reach, (len(target.loans) + 1) / model.residency.n_layers)

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Keep nothing."""
