"""vLLM 0.15.1's scheduler in the plain words of its specification: slow, literal, and nothing shared with ours.

Tokens are spelt out, a block's key is the whole text up to its end, and every rule is
read off reference/vllm_scheduler.md, sections 1 and 2, with its names. Two things are not there:
a request may end before its declared length (an EOS token; under async scheduling it runs
once more for nothing), and ``reserve_full_isl`` of newer versions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor

from policies.types import Request
from tests.serving.drive import STEP_NS
from tests.serving.drive_v1 import CaseV1

Token = tuple[str, int]
Key = tuple[int, tuple[Token, ...]]
PLACEHOLDER = 0


@dataclass(eq=False)
class Req:
    """A request: its text so far, its blocks in every group, and where it stands."""

    id: int
    arrival_ns: int
    n_outputs: int
    max_output: int
    prompt_len: int
    text: list[Token]
    lists: list[list[int]]
    published: int = 0
    remembered: dict[int, int] = field(default_factory=dict[int, int])
    computed: int = 0
    inflight: int = 0
    preemptions: int = 0
    done: bool = False

    def n(self) -> int:
        return len(self.text)


@dataclass
class Log:
    """What one schedule() call did, in the form in which it is compared."""

    rows: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    admitted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    preempted: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Seen:
    """A call, and what it left."""

    log: Log
    free: list[int]
    n_keys: int
    lists: dict[int, list[list[int]]]
    waiting: list[int]
    running: list[int]


class Reference:
    """The pool, the queues, schedule() and update()."""

    def __init__(self, case: CaseV1) -> None:
        self.s = case.settings
        self.bs, self.mml = self.s.block_tokens, self.s.max_model_len
        self.caching = self.s.prefix_caching
        self.groups = range(1 + self.s.n_state_groups)
        self.state_groups = range(1, 1 + self.s.n_state_groups)
        self.free_list = list(range(1, case.n_blocks))
        self.refs = [0] * case.n_blocks
        self.key_of: dict[int, Key] = {}
        self.index: dict[Key, list[int]] = {}
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.recorded: list[tuple[Req, int, bool]] = []

    # Blocks (1.1, 1.2, 1.5).

    def take(self) -> int:
        block = self.free_list.pop(0)
        if block in self.key_of:
            key = self.key_of.pop(block)
            self.index[key].remove(block)
            if not self.index[key]:
                del self.index[key]
        self.refs[block] = 1
        return block

    def touch(self, block: int) -> None:
        if block != PLACEHOLDER:
            if self.refs[block] == 0:
                self.free_list.remove(block)
            self.refs[block] += 1

    def release(self, block: int) -> None:
        if block != PLACEHOLDER:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.free_list.append(block)

    def publish(self, r: Req, n_tokens: int) -> None:
        if not self.caching:
            return
        full = n_tokens // self.bs
        for group in self.groups:
            for i in range(r.published, full):
                block = r.lists[group][i]
                if block != PLACEHOLDER:
                    key = (group, tuple(r.text[: (i + 1) * self.bs]))
                    self.key_of[block] = key
                    self.index.setdefault(key, []).append(block)
        r.published = max(r.published, full)

    def free(self, r: Req) -> None:
        for group in self.groups:
            for block in reversed(r.lists[group]):
                self.release(block)
        r.lists = [[] for _ in self.groups]
        r.remembered, r.published = {}, 0

    # Hits (1.4, 2).

    def lookup(self, r: Req) -> list[list[int]]:
        hits: list[list[int]] = [[] for _ in self.groups]
        if not self.caching:
            return hits
        for i in range(floor((r.n() - 1) / self.bs)):
            key = (0, tuple(r.text[: (i + 1) * self.bs]))
            if key not in self.index:
                break
            hits[0].append(self.index[key][0])
        if self.state_groups:
            while hits[0]:
                m = len(hits[0])
                text = tuple(r.text[: m * self.bs])
                if all((group, text) in self.index for group in self.state_groups):
                    for group in self.state_groups:
                        hits[group] = [PLACEHOLDER] * (m - 1) + [self.index[group, text][0]]
                    break
                hits[0].pop()
        return hits

    # ALLOC (1.5, 2).

    def drop_old_states(self, r: Req, base: int) -> None:
        for group in self.state_groups:
            states = r.lists[group]
            i = min(floor((base - 1) / self.bs), len(states)) - 1
            while i >= 0 and states[i] != PLACEHOLDER:
                self.release(states[i])
                states[i] = PLACEHOLDER
                i -= 1
            s = r.remembered.get(group)
            if s is not None and s < ceil(base / self.bs) - 1 and states[s] != PLACEHOLDER:
                self.release(states[s])
                states[s] = PLACEHOLDER

    def need(self, r: Req, n_tokens: int, hits: list[list[int]]) -> int:
        want = ceil(min(n_tokens, self.mml) / self.bs)
        need = max(0, want - len(r.lists[0]) - len(hits[0]))
        for group in self.state_groups:
            if self.caching:
                need += want > len(r.lists[group]) + len(hits[group])
            else:
                need += not r.lists[group]
        return need + sum(self.refs[b] == 0 for g in self.groups for b in hits[g] if b != PLACEHOLDER)

    def alloc(self, r: Req, n: int, hits: list[list[int]]) -> bool:
        base = r.computed + len(hits[0]) * self.bs
        if self.s.reserve_full_isl and r in self.waiting and self.need(r, r.n(), hits) > len(self.free_list):
            return False
        if self.caching:
            self.drop_old_states(r, base)
        want = ceil(min(base + n, self.mml) / self.bs)
        if self.need(r, base + n, hits) > len(self.free_list):
            return False
        for group in self.groups:
            for block in hits[group]:
                self.touch(block)
            r.lists[group] += hits[group]
        r.published = max(r.published, len(hits[0]))
        while len(r.lists[0]) < want:
            r.lists[0].append(self.take())
        for group in self.state_groups:
            states = r.lists[group]
            if self.caching and want > len(states):
                if states:
                    r.remembered[group] = len(states) - 1
                while len(states) < want - 1:
                    states.append(PLACEHOLDER)
                states.append(self.take())
            elif not states:
                states.append(self.take())
        self.publish(r, min(base + n, r.n()))
        return True

    # One schedule() call (1.3, 2).

    def align(self, r: Req, base: int, n: int) -> int:
        if not (self.caching and self.state_groups) or r.n() > r.prompt_len:
            return n
        last = floor(r.prompt_len / self.bs) * self.bs
        if base + n < last:
            return floor(n / self.bs) * self.bs
        if base < last < base + n:
            return last - base
        return n

    def threshold(self, n: int) -> int:
        return self.s.long_prefill_tokens if 0 < self.s.long_prefill_tokens < n else n

    def preempt(self, v: Req, log: Log) -> None:
        self.free(v)
        v.computed = 0
        v.preemptions += 1
        self.waiting.insert(0, v)
        log.preempted.append(v.id)

    def schedule(self) -> Log:
        log, budget = Log(), self.s.max_num_batched_tokens
        recorded: list[tuple[Req, int]] = []
        i, stop = 0, False
        while i < len(self.running) and budget > 0 and not stop:
            r = self.running[i]
            if r.inflight > 0 and r.computed + 2 - r.inflight >= r.prompt_len + r.max_output:
                i += 1
                continue
            n = self.threshold(r.n() + r.inflight - r.computed)
            n = min(n, budget, self.mml - 1 - r.computed)
            n = self.align(r, r.computed, n)
            if n == 0:
                i += 1
                continue
            while not self.alloc(r, n, [[] for _ in self.groups]):
                v = self.running.pop()
                self.preempt(v, log)
                if v is r:
                    stop = True
                    break
            if not stop:
                recorded.append((r, n))
                budget -= n
                i += 1
        while not log.preempted and self.waiting and budget > 0 and len(self.running) != self.s.max_num_seqs:
            r = self.waiting[0]
            hits = self.lookup(r)
            h = len(hits[0]) * self.bs
            n = self.threshold(r.n() - h)
            if not self.s.chunked_prefill and n > budget:
                break
            n = self.align(r, h, min(n, budget))
            if n == 0 or not self.alloc(r, n, hits):
                break
            self.waiting.pop(0)
            self.running.append(r)
            r.computed = h
            log.admitted.append((r.id, h))
            recorded.append((r, n))
            budget -= n
        self.recorded = []
        for r, n in recorded:
            r.computed += n
            samples = r.computed == r.n() + r.inflight
            r.inflight += samples
            self.recorded.append((r, n, samples))
        log.rows = [(r.id, n) for r, n in recorded]
        return log

    # After the model ran (1.6, 1.7).

    def update(self, recorded: list[tuple[Req, int, bool]]) -> None:
        for r, _, samples in recorded:
            if samples and not r.done:
                r.text.append((f"out{r.id}", r.n() - r.prompt_len))
                r.inflight -= 1
                if self.s.async_scheduling and r in self.running:
                    self.publish(r, r.computed - r.inflight)
                if r.n() - r.prompt_len >= r.n_outputs or r.n() >= self.mml:
                    r.done = True
                    if r in self.running:
                        self.free(r)
        self.running = [r for r in self.running if not r.done]
        self.waiting = [r for r in self.waiting if not r.done]

    def seen(self, log: Log) -> Seen:
        return Seen(
            log=log,
            free=list(self.free_list),
            n_keys=len(self.index),
            lists={r.id: [list(blocks) for blocks in r.lists] for r in self.running},
            waiting=[r.id for r in self.waiting],
            running=[r.id for r in self.running],
        )


def play(case: CaseV1, max_calls: int) -> list[Seen]:
    """Serve a case by the engine loop of 1.7; what each call of schedule() did and left."""
    ref = Reference(case)
    depth = 2 if case.settings.async_scheduling else 1
    arrivals = [_req(case, each) for each in case.requests]
    queue: deque[tuple[list[tuple[Req, int, bool]], int]] = deque()
    now_ns, gpu_free_ns, seen = 0, 0, list[Seen]()
    while len(seen) < max_calls:
        while arrivals and arrivals[0].arrival_ns <= now_ns:
            ref.waiting.append(arrivals.pop(0))
        log = Log()
        if ref.waiting or ref.running:
            log = ref.schedule()
            seen.append(ref.seen(log))
            if log.rows:
                gpu_free_ns = max(now_ns, gpu_free_ns) + STEP_NS
                queue.append((ref.recorded, gpu_free_ns))
                if len(queue) < depth:
                    continue
        if queue:
            recorded, end_ns = queue.popleft()
            now_ns = max(now_ns, end_ns)
            ref.update(recorded)
        elif log == Log():
            if not arrivals:
                break
            now_ns = arrivals[0].arrival_ns
    return seen


def _req(case: CaseV1, request: Request) -> Req:
    return Req(
        id=request.request_id,
        arrival_ns=request.arrival_ns,
        n_outputs=case.n_outputs[request.request_id],
        max_output=request.max_output_tokens,
        prompt_len=request.n_prompt_tokens,
        text=[(stream, i) for stream, n in request.prompt or () for i in range(n)],
        lists=[[] for _ in range(1 + case.settings.n_state_groups)],
    )
