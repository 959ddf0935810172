"""What the loop tells those who keep results: facts, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView


class GapCause(Enum):
    """Why two tokens of a request are as far apart as they are: the first that applies."""

    PREEMPTION = "the request was preempted in between"
    SWITCH = "another model ran in between"
    PREFILL = "a prefill of the same model ran in between"
    FETCH = "the step waited for fetched layers, swapped KV or changed mappings"
    DECODE = "one decode step after the other"


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmUse:
    """Who holds HBM for one model at one moment, in bytes and blocks.

    ``lent_bytes`` are homes of this model that serve as KV cache (of any model);
    ``n_lent_blocks`` are KV blocks that this model has borrowed.
    """

    model: int
    resident_bytes: int
    slot_bytes: int
    loading_bytes: int
    lent_bytes: int
    n_base_blocks: int
    n_base_used: int
    n_lent_blocks: int
    n_lent_used: int


class Journal(Protocol):
    """Keeps what happens. It never answers, so nothing that it does can change a run."""

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """A step was composed at ``now_ns``, and is about to run if it has rows."""
        ...

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """A submission has finished; what its sequences got is entered next."""
        ...

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Each of ``n_requests`` requests saw each of these gaps between two tokens."""
        ...

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Requests finished (``State.FINISHED``) or were dropped (``State.DROPPED``), in this order.

        ``now_ns`` lies within the submission that was told last if they did so before its last step.
        """
        ...

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """A policy was asked; ``changed``: the answer took effect; ``refused``: it did not fit."""
        ...

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Who holds HBM now, one entry a model."""
        ...
