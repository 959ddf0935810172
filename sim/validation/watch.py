"""What a replay keeps: the state after every step, and who has ended."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from statistics import fmean

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView
from sim.validation.peers import Peers
from traces.measured.server_log import Sample


class Watch:
    """Keeps the state after every step, as vLLM's statistics have it, and the requests that ended."""

    def __init__(self, peers: Peers) -> None:
        self.ended: list[Sequence] = []
        self.states: list[Sample] = []
        self._peers = peers

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Nothing to keep."""

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """A step has ended; whoever it ended is told next."""
        del lane, batch
        self.states.append(self._state(report.ends_ns[-1]))

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Requests have ended with the step that ended last."""
        del lane, now_ns, scheduler
        self.ended += seqs
        if self.states:
            self.states[-1] = self._state(self.states[-1].at_ns)

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Nothing to keep."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Nothing to keep."""

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Nothing to keep."""

    def _state(self, at_ns: int) -> Sample:
        engines = self._peers.engines
        free = fmean(engine.pool.n_free / (engine.pool.n_base - 1) for engine in engines)  # one is vLLM's placeholder
        running, waiting = self._peers.n_running, self._peers.n_waiting
        return Sample(at_ns=at_ns, n_running=running, n_waiting=waiting, kv_share=1 - free)
