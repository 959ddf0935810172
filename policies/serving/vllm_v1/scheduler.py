"""vLLM 0.15.1's scheduler (V1): one budget for prompts and decodes, running requests first.

The oracle is vLLM itself: ``tests/data/oracle_v1`` holds what its own code did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from policies.serving.blocks import RangeId
from policies.serving.prefix_cache import output_stream, quoted_outputs
from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.queues import Composition, Queues, Scheduled
from policies.serving.vllm_v1.repeats import (
    in_order_of_taking,
    n_decodes_within_blocks,
    n_decodes_without_shortage,
)
from policies.serving.vllm_v1.running import preempt, schedule_running
from policies.serving.vllm_v1.settings import V1Settings
from policies.serving.vllm_v1.tables import Tables
from policies.serving.vllm_v1.waiting import admit_waiting


class VllmV1:
    """Queues and block tables of one model, as vLLM 0.15.1 keeps them.

    Under async scheduling a step is composed while the one before it runs: ``compose`` may
    be called twice before the first ``ran``. Stop checks belong to a step's end either way.

    Args:
        settings: vLLM's own.
        pool: the model's KV blocks, all free.

    Attributes:
        n_steps_ahead: steps that may be composed before the one under way has ended.
        tables: block tables; not to be changed from outside.
    """

    is_async = False
    """Stop checks of a step come before the next is composed (unlike async output processing of V0)."""

    def __init__(self, settings: V1Settings, pool: FreeQueuePool) -> None:
        self.pool = pool
        self.n_steps_ahead = int(settings.async_scheduling)
        self._settings = settings
        self._queues = Queues()
        self.tables = Tables(settings, pool)
        self._under_way: deque[Scheduled] = deque()
        self._ended: Scheduled | None = None
        self._unchecked: Seq[Sequence] = ()
        self._is_composing = False

    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._queues.running or self._queues.waiting)

    @property
    def n_live(self) -> int:
        """Requests that wait or run."""
        return len(self._queues.waiting) + len(self._queues.running)

    @property
    def n_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._queues.waiting)

    @property
    def n_running(self) -> int:
        """Requests with blocks."""
        return len(self._queues.running)

    @property
    def n_swapped(self) -> int:
        """None: V1 does not swap."""
        return 0

    def add(self, seq: Sequence) -> None:
        """Put a new request at the end of the waiting queue."""
        self._queues.waiting.append(seq)

    def compose(self, now_ns: int, relieve: Relieve) -> Step:
        """Choose what runs next and take its blocks. A step without rows means that nothing can run now."""
        del now_ns
        now = Composition(self._settings, relieve)
        self.pool.step += 1
        self._is_composing = True
        schedule_running(now, self._queues, self.tables)
        if not now.preempted:
            admit_waiting(now, self._queues, self.tables)
        self._is_composing = False
        scheduled = now.done()
        if scheduled.rows:
            self._under_way.append(scheduled)
        return scheduled.step

    def rows_of(self, step: Step) -> list[tuple[Sequence, int]]:
        """Each request of a step that has not run to its end, with its new tokens, in the order of scheduling."""
        return [row for each in self._under_way if each.step is step for row in each.rows]

    def n_repeats(self, step: Step, at_most: int) -> int:
        """How often the step just composed can run in a row, the first time included; see ``Scheduler``.

        What was refused stays refused: free blocks only shrink, and what the head of the waiting queue
        hits stays as it is.
        """
        queues, settings = self._queues, self._settings
        seqs = step.decodes
        acted = step.prefills or step.preempted or queues.late
        if acted or len(seqs) != len(queues.running) or at_most == 1:
            return 1
        n_more = min(at_most - 1, *(self._n_to_limit(seq) for seq in seqs))
        n_takes = self.pool.n_free
        if queues.waiting and settings.prefix_caching and len(seqs) != settings.max_num_seqs:
            head = queues.waiting[0]
            if not {output_stream(seq.request) for seq in seqs}.isdisjoint(quoted_outputs(head.request)):
                return 1  # what it quotes may be published
            n_takes = self.pool.n_takes_before(set(self.tables.find_hits(head).blocks), n_takes)
        if settings.n_state_groups and settings.prefix_caching:
            n_more = min(n_more, n_decodes_within_blocks(seqs, settings.block_tokens))
        else:
            n_more = min(n_more, n_decodes_without_shortage(seqs, settings.block_tokens, n_takes))
        return 1 + n_more

    def ran(self, step: Step, n_steps: int, last_composed_ns: int, stopped: Seq[Sequence]) -> None:
        """The oldest step under way ran ``n_steps`` times: append its tokens and take the blocks of repetitions."""
        del last_composed_ns
        scheduled = self._ended = self._under_way.popleft()
        assert scheduled.step is step, "steps end in the order in which they were composed"
        if n_steps > 1:
            self._take_slots(scheduled.sampled, n_steps - 1)
        for seq in stopped:
            seq.has_stopped = True
        self._unchecked = [seq for seq in scheduled.sampled if seq.state is not State.FINISHED]
        self._queues.late.difference_update(self._unchecked)
        for seq in self._unchecked:
            seq.n_output += n_steps
            if seq.state is State.RUNNING:
                self.tables.publish(seq, seq.n_tokens - 1)

    def compose_again(self, step: Step) -> None:
        """One more repetition is under way behind those that have just ended (async scheduling)."""
        assert self._ended is not None
        assert self._ended.step is step
        self._take_slots(self._ended.sampled, 1)
        self._under_way.appendleft(self._ended)

    def retire(self) -> list[Sequence]:
        """Free the requests whose last token came with the step that has just run, in its order."""
        due, self._unchecked = self._unchecked, ()
        ended = [seq for seq in due if seq.has_stopped or seq.n_tokens >= self._settings.max_model_len]
        if not ended:
            return ended
        queues = self._queues
        for seq in ended:
            if seq.state is State.RUNNING:
                self.tables.free(seq)
            else:  # preempted while its last token was under way
                queues.waiting.remove(seq)
            self.tables.forget(seq)
            seq.state = State.FINISHED
        queues.running = [seq for seq in queues.running if seq.state is State.RUNNING]
        return ended

    def preempt(self, request_ids: Iterable[int]) -> list[Sequence]:
        """Stop these running requests, to be recomputed from the front of the waiting queue; in queue order."""
        if self._is_composing:
            raise ValueError("preempt: a step is being composed; its victims are the scheduler's to choose")
        wanted, queues = set(request_ids), self._queues
        stopped = [seq for seq in queues.running if seq.request.request_id in wanted]
        queues.running = [seq for seq in queues.running if seq.request.request_id not in wanted]
        for seq in reversed(stopped):
            preempt(seq, queues, self.tables)
        return stopped

    def vacate(self, range_id: RangeId) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range; (from, to) block ids in order."""
        return self.tables.vacate(range_id)

    def live(self) -> Iterable[Sequence]:
        """Every waiting and running request, in queue order."""
        return iter(self._queues)

    def _n_to_limit(self, seq: Sequence) -> int:
        """Further decodes before the request is passed over or as long as it may be."""
        n_left = seq.request.n_prompt_tokens + seq.request.max_output_tokens - seq.n_slots
        return max(0, min(n_left, self._settings.max_model_len - seq.n_slots) - 1)

    def _take_slots(self, seqs: Seq[Sequence], n_more: int) -> None:
        """Give every sequence the slots of so many more decodes, as if they had been composed one by one."""
        takers = in_order_of_taking(seqs, self._settings.block_tokens, n_more)
        for seq, block in zip(takers, self.pool.take(len(takers)), strict=True):
            seq.blocks.append(block)
        for seq in seqs:
            seq.n_slots += n_more
            seq.n_computed += n_more
        self.pool.step += n_more
