"""Small cases for vLLM 0.15.1's scheduler, and its engine core's loop with nothing around it.

The loop plays what a machine does on which every step takes ``STEP_NS``: with async
scheduling two batches are under way, and a step that repeats reports all but its last
repetition first, as that is when the next one is composed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.serving.vllm_v1.settings import V1Settings
from policies.types import Request
from tests.serving.drive import STEP_NS, no_relief


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseV1:
    """A scheduler's settings, its blocks (the placeholder included), and requests with their true output lengths."""

    settings: V1Settings
    n_blocks: int
    requests: tuple[Request, ...]
    n_outputs: dict[int, int]


def request(
    request_id: int, prompt: tuple[tuple[str, int], ...], n_declared: int = 1000, *, arrival_ns: int = 0
) -> Request:
    return Request(
        request_id=request_id,
        model=0,
        arrival_ns=arrival_ns,
        n_prompt_tokens=sum(n for _, n in prompt),
        max_output_tokens=n_declared,
        prompt=prompt,
    )


def case(settings: V1Settings, n_blocks: int, *sizes: tuple[int, int]) -> CaseV1:
    """Requests 0, 1, ... with (prompt, output) tokens that are all there at the start and share nothing."""
    requests = tuple(request(i, ((f"p{i}", n_prompt),), n_output) for i, (n_prompt, n_output) in enumerate(sizes))
    outputs = {i: n_output for i, (_, n_output) in enumerate(sizes)}
    return CaseV1(settings=settings, n_blocks=n_blocks, requests=requests, n_outputs=outputs)


def small(**changes: object) -> V1Settings:
    """Blocks of 4 tokens, one batch at a time, no cache, room for everything else."""
    settings = V1Settings(
        max_num_batched_tokens=1000,
        max_model_len=1000,
        block_tokens=4,
        prefix_caching=False,
        async_scheduling=False,
    )
    return replace(settings, **changes)


@st.composite
def cases(draw: st.DrawFn) -> CaseV1:
    """Tiny pools and budgets, shared prefixes, quoted answers, hybrid models, early ends, every mode."""
    size = draw(st.sampled_from([1, 2, 4, 16]))
    n_tokens = draw(st.integers(4, 20 * size))
    requests: list[Request] = []
    n_outputs: dict[int, int] = {}
    for request_id in range(draw(st.integers(1, 10))):
        prompt = draw(_prompts(requests, n_outputs, size))
        n_outputs[request_id] = draw(st.integers(1, 5 * size))
        n_declared = n_outputs[request_id] + draw(st.sampled_from([0, 0, 1, 100]))
        arrival_ns = draw(st.integers(0, 20)) * STEP_NS // 2
        requests.append(request(request_id, prompt, n_declared, arrival_ns=arrival_ns))
    longest = max(each.n_prompt_tokens for each in requests)
    max_model_len = longest + draw(st.sampled_from([1, 2 * size, 1000]))
    chunked = draw(st.booleans())
    settings = V1Settings(
        max_num_batched_tokens=n_tokens if chunked else max_model_len + n_tokens,
        max_model_len=max_model_len,
        block_tokens=size,
        max_num_seqs=draw(st.integers(1, 8)),
        chunked_prefill=chunked,
        prefix_caching=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        long_prefill_tokens=draw(st.sampled_from([0, 0, 3, 2 * size])),
        n_state_groups=draw(st.sampled_from([0, 0, 1, 3])),
        reserve_full_isl=draw(st.sampled_from([False, False, True])),
    )
    requests.sort(key=lambda each: each.arrival_ns)
    n_blocks = draw(st.integers(3, 60))
    return CaseV1(settings=settings, n_blocks=n_blocks, requests=tuple(requests), n_outputs=n_outputs)


@st.composite
def _prompts(
    draw: st.DrawFn, requests: list[Request], n_outputs: dict[int, int], size: int
) -> tuple[tuple[str, int], ...]:
    tail = (draw(st.sampled_from("abc")), draw(st.integers(1, 3 * size)))
    kind = draw(st.sampled_from(["alone", "shared", "quoting"]))
    if kind == "shared":
        return ("system", draw(st.integers(1, 3)) * size), tail
    if kind == "quoting" and requests:
        quoted = draw(st.sampled_from(requests))
        assert quoted.prompt is not None
        return *quoted.prompt, (f"out{quoted.request_id}", draw(st.integers(1, n_outputs[quoted.request_id]))), tail
    return (tail,)


@dataclass(frozen=True, slots=True)
class _Report:
    """What a machine will tell: so many repetitions of a step have ended, and whether another one is under way."""

    end_ns: int
    step: Step
    n_steps: int
    has_more: bool


class DriveV1:
    """Serves a case batch by batch.

    Args:
        relieve: answers the scheduler when it is short.

    Attributes:
        watch: is shown every step when it has just been composed.
        gone: what ``retire`` has returned so far.
    """

    def __init__(
        self, case: CaseV1, relieve: Relieve = no_relief, watch: Callable[[Step], None] = lambda _: None
    ) -> None:
        self.pool = FreeQueuePool(case.n_blocks, spares_cached=case.settings.asks_before_evicting)
        self.scheduler = VllmV1(case.settings, self.pool)
        self.seqs = {each.request_id: Sequence(each) for each in case.requests}
        self.gone: list[Sequence] = []
        self.now_ns = 0
        self._case = case
        self._relieve = relieve
        self.watch = watch
        self._arrivals = list(case.requests)
        self._reports: deque[_Report] = deque()
        self._free_ns = 0

    def n_left(self, seq: Sequence) -> int:
        """Tokens that the sequence will still produce."""
        return self._case.n_outputs[seq.request.request_id] - seq.n_output

    def run(self, choose: Callable[[int], int] = lambda _: 1, max_composed: int = 150) -> Iterator[tuple[Step, int]]:
        """Go on until nothing is left, nothing can run, or too much has been composed.

        Yields each step when its stop checks have been run, with how often it ran since the last time.

        Args:
            choose: how often a step that could repeat so often shall run.
        """
        while max_composed > 0:
            while self._arrivals and self._arrivals[0].arrival_ns <= self.now_ns:
                self.scheduler.add(self.seqs[self._arrivals.pop(0).request_id])
            step = Step()
            if self.scheduler.n_live:
                step = self.scheduler.compose(self.now_ns, self._relieve)
                self.watch(step)
                max_composed -= 1
                if step.runs:
                    self._submit(step, choose(self._n_repeats(step)))
            if step.runs and self._n_under_way() <= self.scheduler.n_steps_ahead:
                continue
            while self._reports:
                yield self._finish(self._reports.popleft())
                if self._n_under_way() <= self.scheduler.n_steps_ahead:
                    break
            else:
                if not step.acted:
                    if not self._arrivals:
                        return
                    self.now_ns = self._arrivals[0].arrival_ns

    def _n_under_way(self) -> int:
        return sum(report.n_steps for report in self._reports)

    def _submit(self, step: Step, n_steps: int) -> None:
        start_ns = max(self.now_ns, self._free_ns)
        self._free_ns = start_ns + n_steps * STEP_NS
        if self.scheduler.n_steps_ahead and n_steps > 1:
            self._reports.append(_Report(self._free_ns - STEP_NS, step, n_steps - 1, True))
            self._reports.append(_Report(self._free_ns, step, 1, False))
        else:
            self._reports.append(_Report(self._free_ns, step, n_steps, False))

    def _finish(self, report: _Report) -> tuple[Step, int]:
        step, n_steps = report.step, report.n_steps
        self.now_ns = report.end_ns
        sampled = [prefill.seq for prefill in step.prefills if prefill.samples] + list(step.decodes)
        stopped = [seq for seq in sampled if seq.state is not State.FINISHED and self.n_left(seq) == n_steps]
        self.scheduler.ran(step, n_steps, self.now_ns - STEP_NS, stopped)
        self.gone += self.scheduler.retire()
        if report.has_more:
            self.scheduler.compose_again(step)
        return step, n_steps

    def _n_repeats(self, step: Step) -> int:
        """Bounded, as the engine does, by the next end and the next arrival."""
        n_ahead, free_ns = self._n_under_way(), max(self.now_ns, self._free_ns)
        n_steps = min([10_000, *(self.n_left(seq) - n_ahead for seq, _ in step.rows)])
        if self._arrivals:  # the arrival is seen by what is composed when it is there
            n_before = -((free_ns - self._arrivals[0].arrival_ns) // STEP_NS)
            n_steps = min(n_steps, n_before + self.scheduler.n_steps_ahead)
        return self.scheduler.n_repeats(step, max(1, n_steps))


Snapshot = tuple[object, ...]


def snapshot(drive: DriveV1) -> Snapshot:
    """All that can be seen of a scheduler: queues, block tables, free blocks in order with their ages, contents."""
    pool = drive.pool
    seqs = [
        (
            seq.request.request_id,
            seq.state,
            seq.n_output,
            seq.n_computed,
            seq.n_slots,
            drive.scheduler.tables.groups_of(seq),
            seq.n_cached,
            seq.n_hit_tokens,
            seq.n_preemptions,
            seq.n_recomputed,
        )
        for seq in drive.seqs.values()
    ]
    queues = [seq.request.request_id for seq in drive.scheduler.live()]
    gone = [seq.request.request_id for seq in drive.gone]
    cached = [pool.is_cached(block) for block in range(pool.n_blocks)]
    return drive.now_ns, seqs, queues, gone, pool.free_order(), list(pool.idle()), pool.n_cached, cached
