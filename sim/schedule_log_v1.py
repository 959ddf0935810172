"""What vLLM 0.15.1's scheduler did, step by step, in the JSON lines of the recorded cases.

The form is that of reference/vllm_scheduler.md, section 6: empty lists are left out.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import TextIO
from zlib import crc32

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.engine import Outcome
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.serving.vllm_v1.settings import V1Settings
from policies.types import Arrival
from policies.view import MemoryView
from sim.linear import LinearTime


class ScheduleLogV1:
    """Writes one record a line: ``meta``, then ``step`` and ``done`` as they happen, ``req`` and ``end`` at last."""

    def __init__(self, file: TextIO, settings: V1Settings, time: LinearTime, scheduler: VllmV1) -> None:
        self.n_steps = 0
        self.n_preemptions = 0
        self._file = file
        self._settings = settings
        self._time = time
        self._scheduler = scheduler
        self._under_way: deque[int] = deque()
        self._ended_step = 0
        self._seqs: dict[int, Sequence] = {}
        self._first_hits: dict[int, int] = {}

    def meta(self, n_requests: int) -> None:
        """Write what was set."""
        settings, n_blocks = self._settings, self._scheduler.pool.n_base
        self._write(
            type="meta",
            vllm="0.15.1",
            engine="V1",
            scheduler="AsyncScheduler" if settings.async_scheduling else "Scheduler",
            num_blocks=n_blocks,
            usable_blocks=n_blocks - 1,
            block_size=settings.block_tokens,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            long_prefill_token_threshold=settings.long_prefill_tokens,
            max_model_len=settings.max_model_len,
            prefix_caching=settings.prefix_caching,
            chunked_prefill=settings.chunked_prefill,
            async_scheduling=settings.async_scheduling,
            mamba_groups=settings.n_state_groups,
            kv_groups=["FullAttentionSpec"] + ["MambaSpec"] * settings.n_state_groups,
            step_time_ns=[self._time.step_ns, self._time.token_ns, self._time.request_ns],
            num_requests=n_requests,
        )

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Write the step, if there is anything in it."""
        del lane, scheduler
        if not step.runs and not step.preempted:
            return
        scheduler, rows = self._scheduler, self._scheduler.rows_of(step)
        n_tokens, admitted = sum(n for _, n in rows), _admitted(step, rows)
        self._seqs.update((_id(seq), seq) for seq, _ in rows)
        for seq in admitted:
            self._first_hits.setdefault(_id(seq), seq.n_cached or 0)
        details: dict[str, object] = {
            "admit": [[_id(seq), seq.n_cached or 0] for seq in admitted],
            "preempt": [_id(seq) for seq, _ in step.preempted],
        }
        self._write(
            type="step",
            step=self.n_steps,
            t=now_ns,
            dur=self._time.of(n_tokens, len(rows)),
            ntok=n_tokens,
            s=[_id(seq) if n == 1 else [_id(seq), n] for seq, n in rows],
            **{name: ids for name, ids in details.items() if ids},
            free=scheduler.pool.n_free,
            fq=crc32(",".join(map(str, scheduler.pool.free_order())).encode()),
            cached=scheduler.pool.n_cached,
            nrun=scheduler.n_running,
            nwait=scheduler.n_waiting,
        )
        if rows:
            self._under_way.append(self.n_steps)
        self.n_steps += 1
        self.n_preemptions += len(step.preempted)

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Note that the oldest step under way has ended."""
        del lane, batch, report
        self._ended_step = self._under_way.popleft()

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Write who ended with it."""
        del lane, scheduler
        ids = [_id(seq) for seq in seqs]
        self._write(type="done", t=now_ns, step=self._ended_step, ids=ids, free=self._scheduler.pool.n_free)

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Not in this log."""

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Not in this log."""

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Not in this log."""

    def close(self, outcome: Outcome, now_ns: int, arrivals: Iterable[Arrival]) -> None:
        """Write what became of every request of the trace, in its order."""
        left = list(self._scheduler.live())
        if outcome is not Outcome.DONE and left:
            running = [_id(seq) for seq in left if seq.state is State.RUNNING]
            waiting = [_id(seq) for seq in left if seq.state is State.WAITING]
            self._write(type="stuck", t=now_ns, running=running, waiting=waiting)
        for arrival in arrivals:
            self._write_request(arrival)
        self._write(
            type="end",
            t=now_ns,
            steps=self.n_steps,
            preemptions=self.n_preemptions,
            hit_tokens=sum(seq.n_hit_tokens for seq in self._seqs.values()),
            finished=sum(seq.state is State.FINISHED for seq in self._seqs.values()),
        )

    def _write_request(self, arrival: Arrival) -> None:
        request = arrival.request
        seq = self._seqs.get(request.request_id) or Sequence(request)
        self._write(
            type="req",
            id=request.request_id,
            arrival=request.arrival_ns,
            prompt_len=request.n_prompt_tokens,
            output_len=arrival.n_output_tokens,
            first_token=seq.first_token_ns,
            finish=seq.finish_ns,
            preemptions=seq.n_preemptions,
            first_hit_tokens=self._first_hits.get(request.request_id),
            hit_tokens_total=seq.n_hit_tokens,
        )

    def _write(self, **record: object) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _admitted(step: Step, rows: Iterable[tuple[Sequence, int]]) -> list[Sequence]:
    """The requests that began with this step, in order."""
    begun = {id(prefill.seq) for prefill in step.prefills if prefill.seq.n_computed == 0}
    return [seq for seq, _ in rows if id(seq) in begun]


def _id(seq: Sequence) -> int:
    return seq.request.request_id
