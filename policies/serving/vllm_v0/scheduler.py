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
        self._settings = settings
        self._queues = Queues()
        self._tables = Tables(settings, pool)
        self._lockstep = Lockstep(pool, settings.block_tokens, settings.max_model_len)
        self._checks = StopChecks(settings.max_model_len, self._tables, self._lockstep)
        self._in_lockstep = not settings.prefix_caching
        self._quoted: set[str] = set()
        self._is_composing = False
        self._has_retired = False

    def decode_apart(self) -> None:
        """Count everything in each sequence from now on: the same results, more slowly."""
        self._in_lockstep = False

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
        settings = self._settings
        now = Composition(settings, relieve)
        step = now.step
        self._is_composing, self._has_retired = True, False
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

    def n_repeats(self, step: Step, at_most: int) -> int:
        """How often the step can run in a row, the first time included; see ``Scheduler``.

        What was refused stays refused, unless a request has ended since: free blocks only
        shrink. The one exception are blocks that fill up with content which another
        request's prompt has put into the cache, since vLLM then frees one of the two.
        """
        queues = self._queues
        acted = step.prefills or step.preempted or step.ended or step.dropped or step.n_swapped_in
        if acted or self._has_retired or at_most == 1:
            return 1
        if step.pace is not None:
            at_most = min(at_most, self._lockstep.n_steps_to_limit)
            return 1 + self._lockstep.n_appends_without_shortage(self.pool.n_free, at_most - 1)
        seqs = step.decodes
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
            self._checks.put([*sampled, *self._decoded(step, n_steps, last_composed_ns)], step.dropped)
            return
        if n_steps > 1:
            self._lockstep.take_slots(n_steps - 1)
        self._lockstep.advance(n_steps)
        members = [seq for seq in stopped if seq not in sampled] if sampled else stopped
        self._checks.put_members(members, sampled, step.dropped)

    def _computed(self, prefills: Seq[Prefill]) -> list[Sequence]:
        """Enter what was computed of prompts; those whose first token came."""
        sampled: list[Sequence] = []
        for prefill in prefills:
            seq, first = prefill.seq, prefill.seq.n_computed + prefill.n_cached
            seq.n_computed = n_computed = first + prefill.n_tokens
            seq.n_hit_tokens += prefill.n_cached
            seq.n_recomputed += max(0, min(n_computed, seq.n_once_computed) - first)
            if prefill.samples:
                seq.n_output += 1
                seq.awaits_check = True
                sampled.append(seq)
        return sampled

    def _decoded(self, step: Step, n_steps: int, last_composed_ns: int) -> list[Sequence]:
        # A sequence that had finished ran once more for nothing (see ``async_output``).
        decodes = [seq for seq in step.decodes if seq.state is State.RUNNING]
        if n_steps > 1:
            append_repeatedly(decodes, n_steps - 1, self._settings.block_tokens, self._tables)
            self._tables.composed(decodes, last_composed_ns)
        for seq in decodes:
            seq.n_computed += n_steps
            seq.n_output += n_steps
            seq.awaits_check = True
        return decodes

    def retire(self) -> list[Sequence]:
        """Run the stop checks of one step that are due; the finished in order, then that step's dropped."""
        gone = self._checks.run()
        if gone:
            self._has_retired = True
            self._forget_ended(gone)
        return gone

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

    def _compose_whole(self, now: Composition) -> None:
        """Prefills of whole prompts if there are any, else decodes: swapped sequences before waiting ones."""
        queues, tables, step = self._queues, self._tables, now.step
        now.n_seqs_left -= len(queues.running)
        if queues.waiting and not queues.swapped:
            step.prefills = schedule_prefills(now, queues, tables)
        if step.prefills or self._decode_together(now):
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
        if self._decode_together(now):
            step.prefills = schedule_prefills(now, queues, tables)
            return
        continued = schedule_running(now, queues, tables, self._checks)
        returned = Continued() if step.preempted else schedule_swapped(now, queues, tables)
        _reorder(queues, continued, returned)
        never_return, step.dropped = step.dropped, []
        started = schedule_prefills(now, queues, tables)
        step.dropped += never_return
        step.prefills = started + continued.prefills + returned.prefills
        step.decodes = continued.decodes + returned.decodes

    def _decode_together(self, now: Composition) -> bool:
        """Let every running sequence decode, if nothing else can come of it; otherwise all leave the lockstep.

        It is what ``schedule_running`` does where nobody is short, too long or out of budget,
        and ``schedule_swapped`` where nobody is swapped out.
        """
        running, step = self._queues.running, now.step
        if not running:
            return False
        joined = self._lockstep.step(running) if self._fits_lockstep(now) else None
        if joined is None:
            self._checks.dissolve()
            return False
        step.decodes, step.pace, step.joined = running.copy(), self._lockstep.pace, joined
        step.n_context_tokens = self._lockstep.n_context_tokens
        if self._settings.chunked_prefill:
            now.n_tokens_left -= len(running)
            now.n_seqs_left -= len(running)
        return True

    def _fits_lockstep(self, now: Composition) -> bool:
        if not self._in_lockstep or self._queues.swapped:
            return False
        return not self._settings.chunked_prefill or len(self._queues.running) <= now.n_tokens_left

    def _forget_ended(self, gone: Seq[Sequence]) -> None:
        """Take them out of the running queue, which a step under way may still hold as it was."""
        ended = [seq for seq in gone if seq.state is State.FINISHED]
        if len(ended) < 4:
            running = self._queues.running = self._queues.running.copy()
            for seq in ended:
                if seq in running:
                    running.remove(seq)
        else:
            self._queues.running = [seq for seq in self._queues.running if seq.state is State.RUNNING]

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
