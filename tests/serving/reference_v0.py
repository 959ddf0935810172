"""vLLM 0.7.3's scheduler in the plain words of its specification: slow, literal, and nothing shared with ours.

Tokens are spelt out, a block's key is the whole text up to its end, and every rule is
read off reference/vllm_scheduler.md, sections 3 and 4. Swapping together with prefix
caching is not specified there and not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor

from policies.types import Request
from tests.serving.drive import STEP_NS, Case

Token = tuple[str, int]
Text = tuple[Token, ...]


@dataclass(eq=False)
class Req:
    """A request: its text so far, its block table, and where it stands."""

    id: int
    arrival_ns: int
    n_outputs: int
    n_prompt: int
    text: list[Token]
    table: list[int] = field(default_factory=list[int])
    slots: int = 0
    computed: int = 0
    decodes: bool = False
    cached: int | None = None
    last_ns: int = 0
    pending: bool = False
    done: bool = False
    n_host: int = 0

    def unseen(self) -> int:
        return len(self.text) - self.slots


@dataclass
class Log:
    """What one step did, in the form in which it is compared."""

    rows: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    prefills: list[tuple[int, int, int, bool]] = field(default_factory=list[tuple[int, int, int, bool]])
    preempted: list[int] = field(default_factory=list[int])
    ended: list[int] = field(default_factory=list[int])
    dropped: list[int] = field(default_factory=list[int])
    swapped_in: int = 0
    swapped_out: int = 0


class Reference:
    """The scheduler, its blocks and its stop checks."""

    def __init__(self, case: Case) -> None:
        self.s, self.n = case.settings, case.n_blocks
        self.bs, self.t = self.s.block_tokens, self.s.max_num_batched_tokens
        self.watermark = floor(self.s.watermark * self.n)
        self.raw = list(range(self.n))
        self.refs = [0] * self.n
        self.index: dict[Text, int] = {}
        self.text_of: dict[int, Text] = {}
        self.idle: dict[int, tuple[int, int, int]] = {}
        self.new_keys: set[int] = set()
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.swapped: list[Req] = []
        self.unchecked: list[list[Req]] = []
        self.scheduled: list[Req] = []
        self.log = Log()
        self.used = self.n_ids = 0

    # Blocks (3.1, 3.4).

    def free_blocks(self) -> int:
        return len(self.raw) + len(self.idle)

    def take(self) -> int:
        if self.raw:
            block = self.raw.pop(0)
        else:
            block = min(self.idle, key=lambda each: self.idle[each])
            del self.idle[block]
            del self.index[self.text_of.pop(block)]
        self.refs[block] = 1
        return block

    def share(self, block: int) -> int:
        self.idle.pop(block, None)
        self.refs[block] += 1
        return block

    def give(self, block: int, last_ns: int) -> None:
        self.refs[block] -= 1
        if self.refs[block]:
            return
        if block in self.text_of:
            self.idle[block] = (last_ns, -len(self.text_of[block]), block)
        else:
            self.raw.insert(0, block)

    def key(self, block: int, text: Text) -> int:
        """The block that stands for this text from now on: ``block``, or its twin."""
        if text in self.index:
            self.give(block, 0)
            return self.share(self.index[text])
        self.index[text] = block
        self.text_of[block] = text
        self.new_keys.add(block)
        return block

    def allocate(self, r: Req) -> None:
        for start in range(0, len(r.text), self.bs):
            end = start + self.bs
            text = tuple(r.text[:end])
            is_full = end <= len(r.text)
            if self.s.prefix_caching and is_full and text in self.index:
                r.table.append(self.share(self.index[text]))
            else:
                r.table.append(self.take())
                if self.s.prefix_caching and is_full:
                    r.table[-1] = self.key(r.table[-1], text)
        r.slots = len(r.text)

    def append(self, r: Req) -> None:
        if r.unseen():
            if r.slots % self.bs == 0:
                r.table.append(self.take())
            r.slots += 1
            if self.s.prefix_caching and r.slots % self.bs == 0:
                r.table[-1] = self.key(r.table[-1], tuple(r.text[: r.slots]))

    def free(self, r: Req) -> None:
        for block in r.table:
            self.give(block, r.last_ns)
        r.table, r.slots, r.cached = [], 0, None

    def touch(self, r: Req) -> int:
        room = self.bs - r.slots % self.bs
        return 1 + ceil((r.unseen() - room) / self.bs)

    def cached_tokens(self, r: Req) -> int:
        if not self.s.prefix_caching:
            return 0
        if r.cached is None:
            usable = [
                self.index.get(tuple(r.text[:end]), -1) not in {-1, *self.new_keys}
                for end in range(self.bs, len(r.text) + 1, self.bs)
            ]
            low, high = 0, len(usable)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if usable[middle] else (low, middle)
            r.cached = low * self.bs
        return r.cached

    # One step (3.2, 4).

    def compose(self, now_ns: int) -> Log:
        self.log, self.used, self.n_ids = Log(), 0, 0
        victims: list[Req] = []
        if not self.s.chunked_prefill:
            self.n_ids = len(self.running)
            new = [] if self.swapped else self.prefills()
            self.running += new
            if not new:
                decodes, _, _ = self.run_on(victims)
                back, _ = ([], []) if self.log.preempted else self.swap_in()
                self.running = decodes + back
                self.log.rows += [(r.id, 1) for r in decodes + back]
            scheduled = new or self.running
        else:
            decodes, prefills, left = self.run_on(victims)
            ends = [r for r, n in prefills if r.computed + n == len(r.text)]
            on = [r for r, n in prefills if r.computed + n != len(r.text)]
            back, back_prefills = ([], []) if self.log.preempted else self.swap_in()
            self.running = left + back + [r for r, _ in back_prefills] + decodes + ends + on
            cannot_return, self.log.dropped = self.log.dropped, []
            new = self.prefills()
            self.log.dropped += cannot_return
            self.running += new
            for r, n in prefills + back_prefills:
                self.log.rows.append((r.id, n))
                self.log.prefills.append((r.id, n, 0, r.computed + n == len(r.text)))
            self.log.rows += [(r.id, 1) for r in decodes + back]
            scheduled = new + [r for r, _ in prefills + back_prefills] + decodes + back
        for r in victims:
            if r.n_host:
                self.swapped.append(r)
            else:
                self.waiting.insert(0, r)
        for r in scheduled:
            r.last_ns = now_ns
        self.new_keys.clear()
        self.scheduled = scheduled
        return self.log

    def chunk(self, n: int) -> int:
        if not self.s.chunked_prefill:
            return n
        left = self.t - self.used
        return min(n, left // self.bs * self.bs if self.s.prefix_caching else left)

    def prefills(self) -> list[Req]:
        new: list[Req] = []
        if self.used == self.t:
            return new
        while self.waiting:
            r = self.waiting[0]
            cached = self.cached_tokens(r)
            uncached = len(r.text) - cached
            if uncached == 0:
                cached, uncached = cached - 1, 1
            uncached = self.chunk(uncached)
            limit = self.s.max_model_len if self.s.chunked_prefill else min(self.s.max_model_len, self.t)
            need = ceil(len(r.text) / self.bs)
            if uncached + cached > limit or self.n - need < self.watermark:
                self.log.dropped.append(self.waiting.pop(0).id)
                continue
            if self.free_blocks() - need < self.watermark:
                break
            if uncached == 0 or self.used + uncached > self.t or self.n_ids + 1 > self.s.max_num_seqs:
                break
            new.append(self.waiting.pop(0))
            self.allocate(r)
            self.used += uncached
            self.n_ids += 1
            self.log.rows.append((r.id, uncached))
            self.log.prefills.append((r.id, uncached, cached, uncached + cached == len(r.text)))
        return new

    def run_on(self, victims: list[Req]) -> tuple[list[Req], list[tuple[Req, int]], list[Req]]:
        decodes: list[Req] = []
        prefills: list[tuple[Req, int]] = []
        queue = self.running
        self.running = []
        while queue:
            r = queue[0]
            n = self.chunk(1 if r.decodes else len(r.text) - r.computed)
            if n == 0:
                break
            queue.pop(0)
            if r.pending and len(r.text) > self.s.max_model_len:
                continue
            survives, was_short = True, False
            while survives and self.touch(r) > self.free_blocks():
                if not was_short and not self.s.chunked_prefill:
                    self.n_ids -= 1
                was_short = True
                victim = queue.pop() if queue else r
                survives = victim is not r
                self.preempt(victim, victims)
            if not survives:
                continue
            self.append(r)
            if r.decodes:
                decodes.append(r)
            else:
                prefills.append((r, n))
            self.used += n
            if self.s.chunked_prefill:
                self.n_ids += 1
        return decodes, prefills, queue

    def preempt(self, victim: Req, victims: list[Req]) -> None:
        if victim.pending and self.check(victim):
            self.log.ended.append(victim.id)
            return
        self.log.preempted.append(victim.id)
        victims.append(victim)
        if self.s.preemption == "swap":
            victim.n_host = len(victim.table)
            self.log.swapped_out += victim.n_host
            for block in victim.table:
                self.give(block, 0)
            victim.table = []
        else:
            self.free(victim)
            victim.computed, victim.decodes = 0, False

    def swap_in(self) -> tuple[list[Req], list[tuple[Req, int]]]:
        decodes: list[Req] = []
        prefills: list[tuple[Req, int]] = []
        while self.swapped:
            r = self.swapped[0]
            need = r.slots // self.bs + self.touch(r)
            if self.n < need:
                self.log.dropped.append(self.swapped.pop(0).id)
                continue
            n = 1 if r.decodes else len(r.text) - r.computed
            if self.free_blocks() - need < self.watermark:
                break
            if self.used + n > self.t or self.n_ids + 1 > self.s.max_num_seqs:
                break
            self.swapped.pop(0)
            r.table = [self.take() for _ in range(r.n_host)]
            self.log.swapped_in += r.n_host
            r.n_host = 0
            self.append(r)
            self.used += n
            self.n_ids += 1
            if r.decodes:
                decodes.append(r)
            else:
                prefills.append((r, n))
        return decodes, prefills

    # After the model ran (3.3).

    def ran(self) -> None:
        n_of = dict(self.log.rows)
        cached_of = {request_id: cached for request_id, _, cached, _ in self.log.prefills}
        sampled: list[Req] = []
        for r in self.scheduled:
            if not r.done:
                r.computed += n_of[r.id] + cached_of.get(r.id, 0)
                if r.computed == len(r.text):
                    r.decodes, r.pending = True, True
                    r.text.append((f"out{r.id}", len(r.text) - r.n_prompt))
                    sampled.append(r)
        self.unchecked.append(sampled)

    def check(self, r: Req) -> bool:
        r.pending = False
        r.done = len(r.text) - r.n_prompt == r.n_outputs or len(r.text) > self.s.max_model_len
        if r.done:
            self.free(r)
        return r.done

    def retire(self) -> bool:
        sampled = self.unchecked.pop(0) if self.unchecked else []
        ended = [r for r in sampled if r.pending and self.check(r)]
        self.running = [r for r in self.running if not r.done]
        return bool(ended)

    def is_idle(self) -> bool:
        return not self.waiting and not self.running and not self.swapped


@dataclass(frozen=True, slots=True)
class Seen:
    """A step, and what it left when it had been composed."""

    log: Log
    raw: list[int]
    n_free: int
    tables: dict[int, list[int]]
    queues: list[int]


def play(case: Case, max_steps: int) -> list[Seen]:
    """Serve a case in the order of ``Drive``; what each composed step did and left."""
    ref, arrivals = Reference(case), [_req(case, each) for each in case.requests]
    now_ns, seen = 0, list[Seen]()
    while len(seen) < max_steps:
        while arrivals and arrivals[0].arrival_ns <= now_ns:
            ref.waiting.append(arrivals.pop(0))
        if ref.is_idle():
            if not arrivals:
                break
            now_ns = arrivals[0].arrival_ns
            continue
        log = ref.compose(now_ns)
        tables = {r.id: list(r.table) for r in ref.running}
        queues = [r.id for r in (*ref.waiting, *ref.running, *ref.swapped)]
        seen.append(Seen(log, list(ref.raw), ref.free_blocks(), tables, queues))
        if not log.rows:
            ref.unchecked.append([])
        ended = (case.settings.async_output or not log.rows) and ref.retire()
        if log.rows:
            ref.ran()
            now_ns += STEP_NS
            if not case.settings.async_output:
                ref.retire()
        if ref.is_idle():
            ref.retire()
        if log == Log() and not ended:
            if not arrivals:
                break
            now_ns = max(now_ns, arrivals[0].arrival_ns)
    return seen


def _req(case: Case, request: Request) -> Req:
    text = [(stream, i) for stream, n in request.prompt or () for i in range(n)]
    n_outputs = case.n_outputs[request.request_id]
    return Req(request.request_id, request.arrival_ns, n_outputs, request.n_prompt_tokens, text)
