"""One model as it is served: its scheduler, its measurements, and what it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.backend import Batch
from policies.memory.experts import ExpertKv
from policies.memory.layout import KvLayout
from policies.serving.blocks import SharedBytes
from policies.serving.estimates import StepEstimates
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.serving.vllm_v0.scheduler import VllmV0
from policies.serving.vllm_v1.scheduler import VllmV1
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


@dataclass(slots=True, kw_only=True)
class Lane:
    """A model's place in the engine (mutable).

    Attributes:
        quiet_until: for each kind of question the step before which it is not asked again.
        budget: bytes that its pool shares with those of other models (``share_idle_kv``).
        in_flight: the step that was submitted and has not ended (nor all of its repetitions).
        behind: another that was submitted behind it.
        n_under_way: steps that have been launched and not ended, where steps are launched ahead.
        n_steps: its own steps so far.
        asked: kinds of question that came up while the present step was composed.
        n_swapped_out: blocks that a step without rows swapped out; they cross before the next one that has some.
        blocked: nothing can run until something changes.
        asking: its scheduler, if that asks before it evicts cached blocks.
        expert_kv: the block ids of increments of its experts, if they may be offloaded.
        quiet_blocks: a "no" to the question before an eviction holds for so many blocks and more.
    """

    index: int
    shape: ModelShape
    scheduler: VllmV0 | VllmV1 | Scheduler  # two that are called directly where they are compiled
    layout: KvLayout
    block_bytes: int
    priority: int | None = None
    budget: SharedBytes | None = None
    estimates: StepEstimates = field(default_factory=StepEstimates)
    in_flight: tuple[Step, Batch] | None = None
    behind: tuple[Step, Batch] | None = None
    n_under_way: int = 0
    n_steps: int = 0
    last_active_step: int | None = None
    quiet_until: dict[Ask, int] = field(default_factory=dict[Ask, int])
    asked: set[Ask] = field(default_factory=set[Ask])
    n_swapped_out: int = 0
    blocked: bool = False
    asking: VllmV1 | None = None
    expert_kv: ExpertKv | None = None
    quiet_blocks: int = 0

    def is_ready(self) -> bool:
        """Whether it could take its turn."""
        return not self.blocked and self.scheduler.has_work()


def batch_of(step: Step, n_swapped_out: int, block_bytes: int) -> Batch:
    """Add up what a composed step computes, and the blocks that cross the link before it."""
    prefills, decodes = step.prefills, step.decodes
    n_decode, n_contexts = len(decodes), step.n_context_tokens
    if n_contexts is None:
        n_contexts = sum([seq.n_tokens for seq in decodes]) if decodes else 0
    n_prefill_tokens = pairs = n_sampled = 0
    for prefill in prefills:
        before = prefill.seq.n_computed + prefill.n_cached
        pairs += prefill.n_tokens * (2 * before + prefill.n_tokens + 1) // 2
        n_prefill_tokens += prefill.n_tokens
        n_sampled += prefill.samples
    work = Work(n_prefill_tokens, len(prefills), pairs, n_decode, n_contexts, n_decode + n_sampled)
    return Batch(work, prefills, decodes, n_swapped_out * block_bytes, step.n_swapped_in * block_bytes)
