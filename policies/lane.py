"""One model as it is served: its scheduler, its measurements, and what it has in flight."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heappop, heappush

from policies.backend import Batch
from policies.memory.layout import KvLayout
from policies.serving.blocks import SharedBytes
from policies.serving.estimates import StepEstimates
from policies.serving.pace import Pace
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.types import Arrival, ModelShape, Work
from policies.view import Ask


class TrueLengths:
    """How many tokens each request will really produce: for the engine alone.

    Schedulers are told of an end when it has come, as a server learns of it.
    """

    def __init__(self) -> None:
        self._n_tokens: dict[int, int] = {}

    def learn(self, arrival: Arrival) -> None:
        """Take in a request that has arrived.

        Raises:
            ValueError: another request with its id is still there.
        """
        if arrival.request.request_id in self._n_tokens:
            raise ValueError(f"request {arrival.request.request_id} is there already; give every request its own id")
        self._n_tokens[arrival.request.request_id] = arrival.n_output_tokens

    def n_left(self, seq: Sequence) -> int:
        """Tokens that it will still produce."""
        return self._n_tokens[seq.request.request_id] - seq.n_output

    def forget(self, seq: Sequence) -> None:
        """The sequence is gone."""
        del self._n_tokens[seq.request.request_id]


class NextEnds:
    """When the sequences of one model that keep a pace will have produced their last token: for the engine alone."""

    def __init__(self, truth: TrueLengths) -> None:
        self._truth = truth
        self._pace: Pace | None = None
        self._ends: list[tuple[int, int, Sequence]] = []  # (the pace's count at its end, order of joining, who)
        self._n_joined = 0

    def join(self, pace: Pace, seqs: Seq[Sequence]) -> None:
        """Sequences joined the pace; if it is a new one, the old one is over. Who has ended left by itself."""
        if pace is not self._pace:
            self._pace = pace
            self._ends = []
        for seq in seqs:
            if seq.state is State.RUNNING:  # its stop check may have come since
                heappush(self._ends, (pace.n_tokens + self._truth.n_left(seq), self._n_joined, seq))
                self._n_joined += 1

    def n_steps(self, pace: Pace) -> int:
        """Steps up to the next end."""
        return self._ends[0][0] - pace.n_tokens if self._ends else 1

    def take(self, n_tokens: int, stopped: list[Sequence]) -> None:
        """Move those who end by the pace's count ``n_tokens`` to ``stopped``, in execution order."""
        while self._ends and self._ends[0][0] <= n_tokens:
            stopped.append(heappop(self._ends)[2])


@dataclass(slots=True, kw_only=True)
class Lane:
    """A model's place in the engine (mutable).

    Attributes:
        quiet_until: for each kind of question the step before which it is not asked again.
        budget: bytes that its pool shares with those of other models (``share_idle_kv``).
        asked: kinds of question that came up while the present step was composed.
        n_swapped_out: blocks that a step without rows swapped out; they cross before the next one that has some.
        blocked: nothing can run until something changes.
    """

    index: int
    shape: ModelShape
    scheduler: Scheduler
    layout: KvLayout
    block_bytes: int
    priority: int | None = None
    budget: SharedBytes | None = None
    estimates: StepEstimates = field(default_factory=StepEstimates)
    in_flight: tuple[Step, Batch] | None = None
    last_active_step: int | None = None
    quiet_until: dict[Ask, int] = field(default_factory=dict[Ask, int])
    asked: set[Ask] = field(default_factory=set[Ask])
    n_swapped_out: int = 0
    blocked: bool = False

    @property
    def has_work(self) -> bool:
        """Whether any request waits, runs or is swapped out."""
        return self.scheduler.n_live > 0

    @property
    def is_ready(self) -> bool:
        """Whether it could take its turn."""
        return not self.blocked and self.scheduler.n_live > 0


def batch_of(step: Step, n_swapped_out: int, block_bytes: int) -> Batch:
    """Add up what a composed step computes, and the blocks that cross the link before it."""
    prefills, n_decode = step.prefills, len(step.decodes)
    n_contexts = step.n_context_tokens
    if n_contexts is None:
        n_contexts = sum(seq.n_tokens for seq in step.decodes)
    n_prefill_tokens = pairs = n_sampled = 0
    for prefill in prefills:
        before = prefill.seq.n_computed + prefill.n_cached
        pairs += prefill.n_tokens * (2 * before + prefill.n_tokens + 1) // 2
        n_prefill_tokens += prefill.n_tokens
        n_sampled += prefill.samples
    work = Work(
        n_prefill_tokens=n_prefill_tokens,
        n_prefill_seqs=len(prefills),
        prefill_pairs=pairs,
        n_decode_seqs=n_decode,
        decode_context_tokens=n_contexts,
        n_sampled=n_decode + n_sampled,
    )
    return Batch(
        work=work,
        prefills=prefills,
        decodes=step.decodes,
        swap_out_bytes=n_swapped_out * block_bytes,
        swap_in_bytes=step.n_swapped_in * block_bytes,
    )
