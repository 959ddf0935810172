"""vLLM 0.7.3's scheduler (V0): whole steps of prefills or decodes, or chunked prefill beside decodes.

The oracle is vLLM itself: ``tests/data/oracle_v0`` holds what its own code did.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from policies.serving.blocks import BlockPool, RangeId
from policies.serving.lockstep import Lockstep
from policies.serving.prefix_cache import output_stream, quoted_outputs
from policies.serving.scheduler import Prefill, Relieve, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.checks import StopChecks
from policies.serving.vllm_v0.prefills import schedule_prefills
from policies.serving.vllm_v0.queues import Composition, Queues
from policies.serving.vllm_v0.repeats import append_repeatedly, n_appends_without_shortage
from policies.serving.vllm_v0.running import Continued, recompute, restart, schedule_running
from policies.serving.vllm_v0.settings import V0Settings
from policies.serving.vllm_v0.swapped import schedule_swapped
from policies.serving.vllm_v0.tables import Tables


class VllmV0:
    """Queues and block tables of one model, as vLLM 0.7.3 keeps them.

    Args:
        settings: vLLM's own.
        pool: the model's KV blocks, all free, with a prefix cache exactly if the settings say so.

    Raises:
        ValueError: settings and pool disagree on prefix caching.
    """

    def __init__(self, settings: V0Settings, pool: BlockPool) -> None:
        if settings.prefix_caching != (pool.cache is not None):
            raise ValueError(f"prefix_caching={settings.prefix_caching}, but the pool says otherwise")
        self.pool = pool
        self.is_async = settings.async_output
        self.n_steps_ahead = 0
        self._settings = settings
        self._queues = Queues()
        self._tables = Tables(settings, pool)
        self._lockstep = Lockstep(pool, settings.block_tokens, settings.max_model_len)
        self._checks = StopChecks(settings.max_model_len, self._queues, self._tables, self._lockstep)
        self._in_lockstep = not settings.prefix_caching
        self._quoted: set[str] = set()
        self._is_composing = False

    def decode_apart(self) -> None:
        """Count everything in each sequence from now on: the same results, more slowly."""
        self._in_lockstep = False

    def has_work(self) -> bool:
        """Whether any request waits, runs or is swapped out."""
        queues = self._queues
        return bool(queues.running or queues.waiting or queues.swapped)

    @property
    def n_live(self) -> int:
        """Requests that wait, run or are swapped out."""
        queues = self._queues
        return len(queues.waiting) + len(queues.running) + len(queues.swapped)

    @property
    def n_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._queues.waiting)

    @property
    def n_running(self) -> int:
        """Sequences with blocks on the device."""
        return len(self._queues.running)

    @property
    def n_swapped(self) -> int:
        """Sequences with blocks on the host."""
        return len(self._queues.swapped)

    def add(self, seq: Sequence) -> None:
        """Put a new sequence at the end of the waiting queue."""
        self._queues.waiting.append(seq)
        if self._settings.prefix_caching:
            self._quoted.update(quoted_outputs(seq.request))

    def compose(self, now_ns: int, relieve: Relieve) -> Step:
        """Choose what runs next and take its blocks. A step without rows means that nothing can run now.

        Raises:
            ValueError: a victim should be swapped out, but ``n_cpu_blocks`` are used up.
        """
        self._checks.has_freed = False
        if not self._queues.waiting:
            step = Step()
            if self._decode_together(step):
                return step
        return self._compose_by_queue(now_ns, relieve)

    def n_repeats(self, step: Step, at_most: int) -> int:
        """How often the step can run in a row, the first time included; see ``Scheduler``.

        What was refused stays refused, unless a request has ended since: free blocks only
        shrink. The one exception are blocks that fill up with content which another
        request's prompt has put into the cache, since vLLM then frees one of the two.
        """
        if self._checks.has_freed or at_most == 1 or step.prefills or step.dropped:
            return 1
        if step.pace is not None:
            return self._lockstep.n_repeats(at_most)
        queues, seqs = self._queues, step.decodes
        if step.preempted or step.ended or step.n_swapped_in:
            return 1
        if seqs != queues.running:
            return 1
        size = self._settings.block_tokens
        n_steps = 1 + n_appends_without_shortage(seqs, size, self.pool.n_free)
        n_steps = min(at_most, n_steps, *(self._checks.n_steps_to_limit(seq) for seq in seqs))
        if self._quoted and (queues.waiting or queues.swapped):
            quoted = (seq for seq in seqs if output_stream(seq.request) in self._quoted)
            n_steps = min([n_steps, *(max(1, -seq.n_slots % size) for seq in quoted)])  # before its block is full
        return n_steps

    def compose_again(self, step: Step) -> None:
        """Take the slots of one more repetition of a step in lockstep; see ``Scheduler``."""
        assert step.pace is self._lockstep.pace
        self._lockstep.take_slots(1)

    def ran(self, step: Step, n_steps: int, last_composed_ns: int, stopped: Seq[Sequence]) -> None:
        """The step ran ``n_steps`` times: append its tokens and, for repetitions, take their blocks in order."""
        for seq in stopped:
            seq.has_stopped = True
        sampled = self._computed(step.prefills) if step.prefills else []
        if step.pace is None:
            self._checks.put(sampled + self._decoded(step, n_steps, last_composed_ns), step.dropped)
        else:
            is_full = self._lockstep.advance(n_steps)
            self._checks.put_members(self._lockstep.members if is_full else stopped, sampled, step.dropped)

    def _computed(self, prefills: Seq[Prefill]) -> list[Sequence]:
        """Enter what was computed of prompts; those whose first token came."""
        sampled: list[Sequence] = []
        for prefill in prefills:
            seq = prefill.seq
            seq.compute(prefill.n_tokens, prefill.n_cached)
            if prefill.samples:
                seq.sample()
                sampled.append(seq)
        return sampled

    def _decoded(self, step: Step, n_steps: int, last_composed_ns: int) -> list[Sequence]:
        # A sequence that had finished ran once more for nothing (see ``async_output``).
        decodes = [seq for seq in step.decodes if seq.state is State.RUNNING]
        if n_steps > 1:
            append_repeatedly(decodes, n_steps - 1, self._settings.block_tokens, self._tables)
            self._tables.composed(decodes, last_composed_ns)
        for seq in decodes:
            seq.compute(n_steps, 0)
            seq.sample(n_steps)
        return decodes

    def retire(self) -> list[Sequence]:
        """Run the stop checks of one step that are due; the finished in order, then that step's dropped."""
        return self._checks.run()

    def preempt(self, request_ids: Iterable[int]) -> list[Sequence]:
        """Stop these running or swapped requests, to be recomputed from the front of the waiting queue."""
        if self._is_composing:
            raise ValueError("preempt: a step is being composed; its victims are the scheduler's to choose")
        self._checks.dissolve()
        wanted, queues = set(request_ids), self._queues
        running = [seq for seq in queues.running if seq.request.request_id in wanted]
        swapped = [seq for seq in queues.swapped if seq.request.request_id in wanted]
        stopped = [seq for seq in reversed(running) if not self._checks.end_early(seq)][::-1]
        for seq in reversed(stopped):
            recompute(seq, self._tables)
        for seq in swapped:
            self._tables.free_on_host(seq)
            restart(seq)
        queues.running = [seq for seq in queues.running if seq not in running]
        for seq in swapped:
            queues.swapped.remove(seq)
        queues.waiting.extendleft(reversed(stopped + swapped))
        return stopped + swapped

    def vacate(self, range_id: RangeId) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range; (from, to) block ids in order."""
        return self._tables.vacate(range_id)

    def live(self) -> Iterable[Sequence]:
        """Every waiting, running and swapped sequence, in queue order."""
        return iter(self._queues)

    def _compose_by_queue(self, now_ns: int, relieve: Relieve) -> Step:
        settings = self._settings
        now = Composition(settings, relieve)
        step = now.step
        self._is_composing = True
        if settings.chunked_prefill:
            self._compose_chunked(now)
        else:
            self._compose_whole(now)
        self._is_composing = False
        if self._queues.victims:
            self._queue_victims(step)
        if settings.prefix_caching:
            self._tables.composed((seq for seq, _ in step.rows), now_ns)
        if not (step.decodes or step.prefills):
            self._checks.put((), step.dropped)  # it will not run
        return step

    def _compose_whole(self, now: Composition) -> None:
        """Prefills of whole prompts if there are any, else decodes: swapped sequences before waiting ones."""
        queues, tables, step = self._queues, self._tables, now.step
        now.n_seqs_left -= len(queues.running)
        if queues.waiting and not queues.swapped:
            step.prefills = schedule_prefills(now, queues, tables)
        if step.prefills or self._decode_together(step):
            return
        continued = schedule_running(now, queues, tables, self._checks)
        step.decodes = continued.decodes
        if not step.preempted:
            returned = schedule_swapped(now, queues, tables)
            queues.running += returned.decodes
            step.decodes = [*continued.decodes, *returned.decodes]

    def _compose_chunked(self, now: Composition) -> None:
        """What runs goes on, then swapped sequences return, then waiting ones start with what is left."""
        queues, tables, step = self._queues, self._tables, now.step
        if self._decode_together(step):
            now.n_tokens_left -= len(step.decodes)
            now.n_seqs_left -= len(step.decodes)
            step.prefills = schedule_prefills(now, queues, tables)
            return
        continued = schedule_running(now, queues, tables, self._checks)
        returned = Continued() if step.preempted else schedule_swapped(now, queues, tables)
        _reorder(queues, continued, returned)
        n_never_return = len(step.dropped)
        started = schedule_prefills(now, queues, tables)
        step.dropped = [*step.dropped[n_never_return:], *step.dropped[:n_never_return]]
        step.prefills = started + continued.prefills + returned.prefills
        step.decodes = continued.decodes + returned.decodes

    def _decode_together(self, step: Step) -> bool:
        """Let every running sequence decode, if nothing else can come of it; otherwise all leave the lockstep.

        It is what ``schedule_running`` does where nobody is short, too long or out of budget,
        and ``schedule_swapped`` where nobody is swapped out.
        """
        running, lockstep = self._queues.running, self._lockstep
        if not running:
            return False
        joined = None
        if self._in_lockstep and not self._queues.swapped and len(running) <= self._settings.max_num_batched_tokens:
            joined = lockstep.step(running)
        if joined is None:
            self._checks.dissolve()
            return False
        step.decodes, step.pace, step.joined = running.copy(), lockstep.pace, joined
        step.n_context_tokens = lockstep.n_context_tokens
        return True

    def _queue_victims(self, step: Step) -> None:
        """Only now: within the step that preempted them, waiting requests may overtake (chunked prefill)."""
        for seq, preemption in step.preempted:
            if preemption == "swap":
                self._queues.swapped.append(seq)
            else:
                self._queues.waiting.appendleft(seq)
        self._queues.victims.clear()


def _reorder(queues: Queues, continued: Continued, returned: Continued) -> None:
    """Put ``running`` in the order of the next step: left over, swapped in, decodes, prefills that end first."""
    n_scheduled = len(continued.decodes) + len(continued.prefills)
    queues.running = [
        *queues.running[n_scheduled:],
        *returned.decodes,
        *(prefill.seq for prefill in returned.prefills),
        *continued.decodes,
        *(prefill.seq for prefill in continued.prefills if prefill.samples),
        *(prefill.seq for prefill in continued.prefills if not prefill.samples),
    ]
