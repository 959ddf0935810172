"""Small serving cases, and the loop over one scheduler with nothing around it.

The loop is the engine's order of calls in plain lines, so that tests can look between
any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from policies.serving.blocks import BlockPool
from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.scheduler import V0Settings, VllmV0
from policies.types import Request
from policies.view import Ask

STEP_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scheduler's settings, its blocks, and requests with their true output lengths."""

    settings: V0Settings
    n_blocks: int
    requests: tuple[Request, ...]
    n_outputs: dict[int, int]


def request(
    request_id: int, n_prompt: int, *, arrival_ns: int = 0, prompt: tuple[tuple[str, int], ...] | None = None
) -> Request:
    """A request that declares far more output than any test gives it."""
    return Request(
        request_id=request_id,
        model=0,
        arrival_ns=arrival_ns,
        n_prompt_tokens=n_prompt,
        max_output_tokens=10_000,
        prompt=prompt,
    )


def case(settings: V0Settings, n_blocks: int, *sizes: tuple[int, int]) -> Case:
    """Requests 0, 1, ... with (prompt, output) tokens that are all there at the start."""
    requests = tuple(request(i, n_prompt) for i, (n_prompt, _) in enumerate(sizes))
    outputs = {i: n_output for i, (_, n_output) in enumerate(sizes)}
    return Case(settings=settings, n_blocks=n_blocks, requests=requests, n_outputs=outputs)


def small(**changes: object) -> V0Settings:
    """Blocks of 4 tokens, stop checks at once, room for everything else."""
    settings = V0Settings(max_num_batched_tokens=1000, max_model_len=1000, block_tokens=4, async_output=False)
    return replace(settings, **changes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Tiny pools and budgets, shared prefixes, quoted answers, every mode."""
    size = draw(st.sampled_from([1, 2, 4, 16]))
    n_tokens = draw(st.integers(max(size, 4), 20 * size))
    n_blocks = draw(st.integers(3, 40))
    settings = V0Settings(
        max_num_batched_tokens=n_tokens,
        max_model_len=draw(st.sampled_from([n_tokens, 10 * n_tokens])),
        block_tokens=size,
        max_num_seqs=draw(st.integers(1, 8)),
        chunked_prefill=draw(st.booleans()),
        preemption=draw(st.sampled_from(["auto", "swap"])),
        prefix_caching=draw(st.booleans()),
        async_output=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.01, 0.1])),
        n_cpu_blocks=10_000,
    )
    requests: list[Request] = []
    n_outputs: dict[int, int] = {}
    for request_id in range(draw(st.integers(1, 10))):
        prompt = draw(_prompts(requests, n_outputs, size))
        arrival_ns = draw(st.integers(0, 20)) * STEP_NS // 2
        requests.append(request(request_id, sum(n for _, n in prompt), arrival_ns=arrival_ns, prompt=prompt))
        n_outputs[request_id] = draw(st.integers(1, 5 * size))
    requests.sort(key=lambda each: each.arrival_ns)
    return Case(settings=settings, n_blocks=n_blocks, requests=tuple(requests), n_outputs=n_outputs)


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


def no_relief(n_missing: int, ask: Ask) -> int:
    """Grant nothing."""
    del n_missing, ask
    return 0


class Drive:
    """Serves a case step by step.

    Args:
        relieve: answers the scheduler when it is short.
        watch: is shown every step when it has just been composed.

    Attributes:
        gone: what ``retire`` has returned so far.
    """

    def __init__(
        self, case: Case, relieve: Relieve = no_relief, watch: Callable[[Step], None] = lambda _: None
    ) -> None:
        settings = case.settings
        self.pool = BlockPool(case.n_blocks, caching=settings.prefix_caching)
        self.scheduler = VllmV0(settings, self.pool)
        self.seqs = {each.request_id: Sequence(each) for each in case.requests}
        self.gone: list[Sequence] = []
        self.now_ns = 0
        self._case = case
        self._relieve = relieve
        self._watch = watch
        self._arrivals = list(case.requests)

    def n_left(self, seq: Sequence) -> int:
        """Tokens that the sequence will still produce."""
        return self._case.n_outputs[seq.request.request_id] - seq.n_output

    def run(self, choose: Callable[[int], int] = lambda _: 1, max_steps: int = 150) -> Iterator[tuple[Step, int]]:
        """Go on until nothing is left, nothing can run, or too many steps; yields each step behind its ``ran``.

        Args:
            choose: how often a step that could repeat so often shall run.
        """
        scheduler = self.scheduler
        while max_steps > 0:
            self._take()
            if not list(scheduler.live()):
                if not self._arrivals:
                    return
                self.now_ns = self._arrivals[0].arrival_ns
                continue
            step = scheduler.compose(self.now_ns, self._relieve)
            self._watch(step)
            retired = self._retire() if scheduler.is_async or not step.rows else []
            n_steps = 1
            if step.rows:
                n_steps = choose(self._n_repeats(step))
                stopped = self._stopped(step, n_steps)
                scheduler.ran(step, n_steps, self.now_ns + (n_steps - 1) * STEP_NS, stopped)
                self.now_ns += n_steps * STEP_NS
                if not scheduler.is_async:
                    self._retire()
            if not list(scheduler.live()):
                self._retire()
            yield step, n_steps
            max_steps -= n_steps
            if not step.acted and not retired:
                if not self._arrivals:
                    return
                self.now_ns = max(self.now_ns, self._arrivals[0].arrival_ns)

    def _take(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_ns <= self.now_ns:
            self.scheduler.add(self.seqs[self._arrivals.pop(0).request_id])

    def _retire(self) -> list[Sequence]:
        gone = self.scheduler.retire()
        self.gone += gone
        return gone

    def _stopped(self, step: Step, n_steps: int) -> list[Sequence]:
        mute = {id(prefill.seq) for prefill in step.prefills if not prefill.samples}
        rows = [seq for seq, _ in step.rows if seq.state is State.RUNNING and id(seq) not in mute]
        return [seq for seq in rows if self.n_left(seq) == n_steps]

    def _n_repeats(self, step: Step) -> int:
        """Bounded, as the engine does, by the next end and the next arrival."""
        n_steps = 10_000
        for seq, _ in step.rows:
            if seq.state is State.RUNNING:
                n_steps = min(n_steps, self.n_left(seq))
        if self._arrivals:
            n_steps = min(n_steps, -(-(self._arrivals[0].arrival_ns - self.now_ns) // STEP_NS))
        return self.scheduler.n_repeats(step, max(1, n_steps))


Snapshot = tuple[object, ...]


def snapshot(drive: Drive) -> Snapshot:
    """All that can be seen of a scheduler: queues, block tables, free blocks in order, cached content."""
    pool, scheduler = drive.pool, drive.scheduler
    cache = pool.cache
    content = () if cache is None else (len(cache), [cache.is_keyed(block) for block in range(pool.n_blocks)])
    seqs = [
        (
            seq.request.request_id,
            seq.state,
            seq.n_output,
            seq.n_computed,
            seq.n_slots,
            tuple(seq.blocks),
            seq.n_cached,
            seq.n_hit_tokens,
            seq.n_preemptions,
            seq.n_recomputed,
            seq.last_composed_ns,
            seq.awaits_check,
        )
        for seq in drive.seqs.values()
    ]
    queues = [seq.request.request_id for seq in scheduler.live()]
    gone = [seq.request.request_id for seq in drive.gone]
    return drive.now_ns, seqs, queues, gone, pool.free_order(), pool.n_free, content
