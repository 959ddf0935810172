"""Who waits and who runs, and a step while it is being composed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import chain

from policies.serving.scheduler import Prefill, Relieve, Step
from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.settings import V1Settings


@dataclass(slots=True)
class Queues:
    """The two queues of vLLM.

    Attributes:
        running: in the order of their admission.
        late: waiting requests whose last token has been sampled and is still to come (async scheduling).
    """

    waiting: deque[Sequence] = field(default_factory=deque[Sequence])
    running: list[Sequence] = field(default_factory=list[Sequence])
    late: set[Sequence] = field(default_factory=set[Sequence])

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self.waiting, self.running)


@dataclass(slots=True)
class Scheduled:
    """A composed step until it has run.

    Attributes:
        rows: each request with its new tokens in the order of scheduling, in which vLLM looks at them afterwards.
        sampled: of these, the ones that sample a token, in the same order.
    """

    step: Step
    rows: list[tuple[Sequence, int]] = field(default_factory=list[tuple[Sequence, int]])
    sampled: list[Sequence] = field(default_factory=list[Sequence])


class Composition:
    """A step being composed, with what the budget still allows.

    Attributes:
        n_tokens_left: tokens that may still be scheduled.
        preempted: victims in order of eviction.
        spared: free blocks that the request in hand will reference, while the engine is asked to make room for it.
        behind: running requests that this step has not come to, while the engine is asked.
    """

    def __init__(self, settings: V1Settings, relieve: Relieve) -> None:
        self.settings = settings
        self.relieve = relieve
        self.n_tokens_left = settings.max_num_batched_tokens
        self.preempted: list[Sequence] = []
        self.spared: frozenset[int] = frozenset()
        self.behind: Seq[Sequence] = ()
        self._rows: list[tuple[Sequence, int]] = []
        self._sampled: list[Sequence] = []
        self._prefills: list[Prefill] = []
        self._decodes: list[Sequence] = []
        self._n_contexts = 0

    def begin(self, seq: Sequence, n_new: int, n_cached: int) -> None:
        """Enter an admitted request whose first tokens have been given slots, behind those that were hit."""
        seq.n_computed = 0
        self._enter(seq, n_new)
        self._prefills.append(Prefill(seq, n_new, n_cached, seq.n_slots >= seq.n_tokens))

    def go_on(self, seq: Sequence, n_new: int) -> None:
        """Enter a running request whose next tokens have been given slots."""
        seq.n_computed = n_before = seq.n_slots - n_new
        self._enter(seq, n_new)
        samples = seq.n_slots >= seq.n_tokens
        if samples and n_new == 1 and n_before >= seq.request.n_prompt_tokens:
            self._decodes.append(seq)
            self._n_contexts += seq.n_slots
        else:
            self._prefills.append(Prefill(seq, n_new, 0, samples))

    def _enter(self, seq: Sequence, n_new: int) -> None:
        self._rows.append((seq, n_new))
        if seq.n_slots >= seq.n_tokens:
            self._sampled.append(seq)
        if seq.n_once_computed:
            seq.n_recomputed += max(0, min(seq.n_slots, seq.n_once_computed) - (seq.n_slots - n_new))
        self.n_tokens_left -= n_new

    def done(self) -> Scheduled:
        """What has been composed."""
        step = Step(prefills=self._prefills, decodes=self._decodes)
        step.n_context_tokens = self._n_contexts
        step.preempted = [(seq, "recompute") for seq in self.preempted]
        return Scheduled(step, self._rows, self._sampled)
