"""What a scheduler did, step by step, in the JSON lines of the recorded vLLM cases.

The form is that of reference/vllm_scheduler.md, section 6: empty lists and (but for the
counts of every step) zeros are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TextIO

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.engine import Outcome
from policies.journal import GapCause, HbmUse
from policies.serving.blocks import BlockPool
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.settings import V0Settings
from policies.types import Arrival
from policies.view import MemoryView
from sim.linear import LinearTime

Record = dict[str, object]


class ScheduleLog:
    """Writes one record a line: ``meta``, then ``step`` and ``done`` as they happen, ``req`` and ``end`` at last.

    A token reaches its client when its stop check has run. In vLLM's asynchronous mode a
    victim's check runs early and its token comes with its next one, so a first token may
    be dated later than the step that computed it.
    """

    def __init__(self, file: TextIO, settings: V0Settings, time: LinearTime) -> None:
        self.n_steps = 0
        self.n_preemptions = 0
        self._file = file
        self._settings = settings
        self._time = time
        self._step = Step()
        self._record: Record = {}
        self._seqs: dict[int, Sequence] = {}
        self._first_token_ns: dict[int, int] = {}
        self._just_sampled_first: set[int] = set()
        self._told: set[int] = set()

    def meta(self, n_blocks: int, n_requests: int) -> None:
        """Write what was set."""
        settings = self._settings
        self._write(
            type="meta",
            vllm="0.7.3",
            engine="V0",
            scheduler="vllm_v0",
            num_blocks=n_blocks,
            num_cpu_blocks=settings.n_cpu_blocks,
            watermark=settings.watermark,
            watermark_blocks=int(settings.watermark * n_blocks),
            block_size=settings.block_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            prefix_caching=settings.prefix_caching,
            chunked_prefill=settings.chunked_prefill,
            async_output_proc=settings.async_output,
            preemption_mode=settings.preemption,
            step_time_ns=[self._time.step_ns, self._time.token_ns, self._time.request_ns],
            num_requests=n_requests,
        )

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Write the step, behind the ends that came to light while it was composed."""
        del lane
        for seq, n_free in step.ended:
            self._told.add(_id(seq))
            self._write(type="done", t=now_ns, ids=[_id(seq)], free=n_free)
        for seq in step.unseen:
            if _id(seq) in self._just_sampled_first:
                del self._first_token_ns[_id(seq)]
        self._just_sampled_first.clear()
        self._step = step
        self._seqs.update({_id(seq): seq for seq in (*(seq for seq, _ in step.rows), *step.dropped)})
        if step.rows or step.preempted or step.dropped or step.n_swapped_in:
            self._record = self._step_record(now_ns, step, scheduler)
            self._write(**self._record)
            self.n_steps += 1
            self.n_preemptions += len(step.preempted)

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Write the repetitions of a step that ran more than once, and date first tokens."""
        del lane
        self._write_repetitions(batch, report)
        mute = {_id(prefill.seq) for prefill in self._step.prefills if not prefill.samples}
        for seq, _ in batch.rows:
            if seq.state is State.RUNNING and _id(seq) not in self._first_token_ns and _id(seq) not in mute:
                self._first_token_ns[_id(seq)] = report.ends_ns[0]
                self._just_sampled_first.add(_id(seq))

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Write who ended, but for those whose end has been written."""
        del lane
        ids = [_id(seq) for seq in seqs if _id(seq) not in self._told]
        self._told.difference_update(_id(seq) for seq in seqs)
        if ids:
            self._write(type="done", t=now_ns, ids=ids, free=scheduler.pool.n_free)

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Not in this log."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Not in this log."""

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Not in this log."""

    def close(self, outcome: Outcome, now_ns: int, arrivals: Iterable[Arrival], live: Iterable[Sequence]) -> None:
        """Write what became of every request.

        Args:
            arrivals: all of the trace, in its order.
            live: requests that are left.
        """
        left = list(live)
        if outcome is not Outcome.DONE and left:
            if self._settings.async_output:
                for request_id in self._just_sampled_first:
                    del self._first_token_ns[request_id]
            running = [_id(seq) for seq in left if seq.state is State.RUNNING]
            waiting = [_id(seq) for seq in left if seq.state is State.WAITING]
            self._write(type="stuck", t=now_ns, running=running, waiting=waiting)
        requests = [self._request_record(arrival) for arrival in arrivals]
        for record in requests:
            self._write(**record)
        self._write(
            type="end",
            t=now_ns,
            steps=self.n_steps,
            preemptions=self.n_preemptions,
            hit_tokens=sum(seq.n_hit_tokens for seq in self._seqs.values()),
            finished=sum(record["finish"] is not None for record in requests),
            ignored=sum(record["ignored"] is True for record in requests),
        )

    def _step_record(self, now_ns: int, step: Step, scheduler: Scheduler) -> Record:
        n_tokens = sum(n for _, n in step.rows)
        record: Record = {
            "type": "step",
            "step": self.n_steps,
            "t": now_ns,
            "dur": self._time.of(n_tokens, len(step.rows)),
            "ntok": n_tokens,
            "s": [_id(seq) if n == 1 else [_id(seq), n] for seq, n in step.rows],
        }
        details: Record = {
            "prefill": [[_id(each.seq), each.n_tokens, each.n_cached, each.samples] for each in step.prefills],
            "preempt": [[_id(seq), mode] for seq, mode in step.preempted],
            "ignored": [_id(seq) for seq in step.dropped],
            "swap_in": step.n_swapped_in,
            "swap_out": step.n_swapped_out,
        }
        record |= {name: value for name, value in details.items() if value}
        record |= {"free": scheduler.pool.n_free, "nrun": scheduler.n_running, "nwait": scheduler.n_waiting}
        if scheduler.n_swapped:
            record["nswap"] = scheduler.n_swapped
        pool = scheduler.pool
        if isinstance(pool, BlockPool) and pool.cache is not None:
            record |= {"hashless": pool.n_empty, "evictable": pool.cache.n_idle, "cached": len(pool.cache)}
        return record

    def _write_repetitions(self, batch: Batch, report: StepReport) -> None:
        """Write the second and later steps of a leap; each sequence takes a block where its last one was full."""
        n_more = len(report.ends_ns) - 1
        if not n_more:
            return
        size, n_free = self._settings.block_tokens, self._record["free"]
        assert isinstance(n_free, int)
        rooms = Counter(-seq.n_slots % size for seq, _ in batch.rows)
        for nth, (start_ns, end_ns) in enumerate(zip(report.ends_ns, report.ends_ns[1:], strict=False)):
            n_free -= rooms[nth % size]
            times: Record = {"step": self.n_steps, "t": start_ns, "dur": end_ns - start_ns, "free": n_free}
            self._write(**(self._record | times))
            self.n_steps += 1

    def _request_record(self, arrival: Arrival) -> Record:
        request = arrival.request
        seq = self._seqs.get(request.request_id) or Sequence(request)
        return {
            "type": "req",
            "id": request.request_id,
            "arrival": request.arrival_ns,
            "prompt_len": request.n_prompt_tokens,
            "output_len": arrival.n_output_tokens,
            "first_token": self._first_token_ns.get(request.request_id),
            "finish": seq.finish_ns,
            "preemptions": seq.n_preemptions,
            "hit_tokens_total": seq.n_hit_tokens,
            "ignored": seq.state is State.DROPPED,
            "tokens_out": seq.n_output,
        }

    def _write(self, **record: object) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _id(seq: Sequence) -> int:
    return seq.request.request_id
