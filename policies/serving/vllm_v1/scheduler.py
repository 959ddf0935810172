"""vLLM 0.15.1's scheduler (V1): one budget for prompts and decodes, running requests first.

The oracle is vLLM itself: ``tests/data/oracle_v1`` holds what its own code did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from itertools import islice

from policies.serving.blocks import RangeId
from policies.serving.prefix_cache import output_stream, quoted_outputs
from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.lately import Lately
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
from policies.shortage import Preemptable, Shortage, Victim


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
        foresees: says of a request whether its content will be hit again; ``None``, as of a real server: unknown.
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
        self._now: Composition | None = None
        self._lately = Lately()
        self.foresees: Callable[[int], bool] | None = None
        self._waits_since: dict[Sequence, int] = {}

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
        now = self._now = Composition(self._settings, relieve)
        self.pool.step += 1
        schedule_running(now, self._queues, self.tables)
        if not now.preempted:
            admit_waiting(now, self._queues, self.tables)
        self._now = None
        scheduled = now.done()
        if self._settings.asks_before_evicting:
            self._measure(scheduled, now_ns)
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
        n_takes = self.pool.n_empty if settings.asks_before_evicting else self.pool.n_free
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
        """Stop these running requests, to be recomputed from the front of the waiting queue; in queue order.

        While a step is being composed, only requests that it has not come to.
        """
        wanted, queues, now = set(request_ids), self._queues, self._now
        if now is not None and not wanted <= {seq.request.request_id for seq in now.behind}:
            raise ValueError("preempt: a step is being composed; its victims are the scheduler's to choose")
        stopped = [seq for seq in queues.running if seq.request.request_id in wanted]
        queues.running[:] = [seq for seq in queues.running if seq.request.request_id not in wanted]
        for seq in reversed(stopped):
            preempt(seq, queues, self.tables)
            if now is not None:
                now.preempted.append(seq)
        return stopped

    def shortage(self, n_blocks: int, block_bytes: int) -> Shortage:
        """Say what could be given up while the engine is asked for ``n_blocks`` blocks without content."""
        spared, behind = (self._now.spared, self._now.behind) if self._now else (frozenset[int](), ())
        idle = (each for each in self.pool.idle() if each[0] not in spared)
        newest = islice(reversed(behind), n_blocks)
        return Shortage(
            n_blocks=n_blocks,
            block_tokens=self._settings.block_tokens,
            block_bytes=block_bytes,
            victims=tuple(Victim(block, age, self._is_reused(block)) for block, age in islice(idle, n_blocks)),
            preemptable=tuple(Preemptable(seq.request.request_id, self.tables.n_partial(seq)) for seq in newest),
            n_steps_left=min((_n_declared_left(seq) for seq in self._queues.running), default=None),
            hit_rate=self._lately.hit_rate(self.pool.step),
            queue_ns=self._lately.wait_ns,
        )

    def vacate(self, range_id: RangeId) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range; (from, to) block ids in order."""
        return self.tables.vacate(range_id)

    def live(self) -> Iterable[Sequence]:
        """Every waiting and running request, in queue order."""
        return iter(self._queues)

    def _is_reused(self, block: int) -> bool | None:
        last_user = self.tables.last_users.get(block)
        return None if self.foresees is None or last_user is None else self.foresees(last_user)

    def _measure(self, scheduled: Scheduled, now_ns: int) -> None:
        """Note what admitted requests found in the cache and how long they had waited."""
        for seq, _ in scheduled.step.preempted:
            self._waits_since[seq] = now_ns
        for prefill in scheduled.step.prefills:
            seq = prefill.seq
            if seq.n_computed:  # it goes on
                continue
            if not seq.n_preemptions:
                self._lately.looked_up(self.pool.step, prefill.n_cached, seq.request.n_prompt_tokens)
            self._lately.waited(now_ns - self._waits_since.pop(seq, seq.request.arrival_ns))

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


def _n_declared_left(seq: Sequence) -> int:
    """Tokens that a request may still produce, as declared."""
    return seq.request.max_output_tokens - seq.n_output
