"""A journal that nobody keeps."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView


class Unheard:
    """See ``Journal``; it is told everything and does nothing."""

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Nothing."""

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Nothing."""

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Nothing."""

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Nothing."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Nothing."""

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Nothing."""
