"""The simplest world that keeps the seam's promises: linear step times over a literal page table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from policies.backend import Batch, Change, StepReport
from policies.errors import HbmOverdrawn
from policies.memory.ops import Lend, Load, MoveBlocks, Withdraw
from policies.types import Work
from sim.under_way import UnderWay
from tests.engine.kv_contents import KvContents
from tests.engine.page_table import PageTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long things take, in nanoseconds; equal integers in give equal integers out."""

    step_ns: int = 40
    token_ns: int = 3
    context_token_ns: int = 1
    rest_ns: int = 10
    fetch_ns: int = 20
    load_ns: int = 150
    swap_byte_ns: int = 1
    remap_ns: int = 0

    def compute_ns(self, work: Work) -> int:
        """Device time of the layers."""
        return self.step_ns + self.token_ns * work.n_tokens + self.context_token_ns * work.decode_context_tokens


def nothing_refused(_change: Change) -> bool:
    return False


class NullBackend:
    """A world without physics. Every load takes the same time, cycling layers stall a step by a fixed rule.

    Args:
        contents: what blocks hold, where that is known.
        beside: lanes run side by side.

    Attributes:
        refuses: asked about every change before anything is touched.
    """

    def __init__(
        self, pace: Pace, table: PageTable, contents: KvContents | None = None, *, beside: bool = False
    ) -> None:
        self.table = table
        self._beside = beside
        self._contents = contents
        self.refuses: Callable[[Change], bool] = nothing_refused
        self._pace = pace
        self._now_ns = 0
        self._under_way: dict[int, UnderWay] = {}
        self._loads: list[tuple[int, int, int]] = []  # (end_ns, model, layer) in the order of request
        self._remap_ns = 0

    @property
    def now_ns(self) -> int:
        return self._now_ns

    def apply(self, change: Change) -> None:
        if self.refuses(change):
            raise HbmOverdrawn("refused on demand")
        for op in change.ops:
            self.table.carry_out(op)
            if isinstance(op, MoveBlocks) and self._contents:
                self._contents.move(op)
            if isinstance(op, Load):
                self._loads.append((self._now_ns + self._pace.load_ns, op.model, op.layer))
            if isinstance(op, Lend | Withdraw):
                self._remap_ns += self._pace.remap_ns

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        under_way = self._under_way.setdefault(lane, UnderWay())
        start_ns = under_way.begin(lane, batch, n_steps, n_ahead, self._now_ns)
        for seq, _ in batch.rows:
            assert all(self.table.is_mapped(lane, block) for block in seq.blocks), f"{seq} has blocks without pages"
        if self._contents:
            self._contents.run(lane, batch)
        remap_ns, self._remap_ns = self._remap_ns, 0
        swap_ns = self._pace.swap_byte_ns * (batch.swap_in_bytes + batch.swap_out_bytes)
        stop_ns = min([stop_ns, *(end_ns for end_ns, _, _ in self._loads)])
        now_ns, works = start_ns + remap_ns + swap_ns, _repetitions(batch.work, n_steps)
        ends_ns, stalls_ns = list[int](), list[int]()
        for work in works:
            stalls_ns.append(self._stall_ns(lane, work))
            now_ns += self._pace.compute_ns(work) + stalls_ns[-1] + self._pace.rest_ns
            if self._beside and ends_ns and now_ns > stop_ns:
                del stalls_ns[-1]
                break
            ends_ns.append(now_ns)
            if not under_way.goes_on(start_ns, ends_ns, stop_ns):
                break
        report = StepReport(
            lane=lane,
            start_ns=start_ns,
            ends_ns=ends_ns,
            compute_ns=[self._pace.compute_ns(work) for work in works[: len(ends_ns)]],
            stall_ns=stalls_ns,
            rest_ns=[self._pace.rest_ns] * len(ends_ns),
            swap_ns=swap_ns,
            remap_ns=remap_ns,
        )
        under_way.put(report)

    def advance(self, until_ns: int | None) -> StepReport | None:
        ends_ns = {lane: end_ns for lane, each in self._under_way.items() if (end_ns := each.next_end_ns) is not None}
        first = min(ends_ns, key=lambda lane: (ends_ns[lane], lane if self._beside else 0), default=None)
        if first is None and until_ns is None:
            raise ValueError("nothing is in flight")
        report = None if first is None else self._under_way[first].take(until_ns)
        self._now_ns = max(self._now_ns, report.ends_ns[-1] if report is not None else until_ns or 0)
        return report

    def landed(self) -> tuple[tuple[int, int], ...]:
        done = sorted((load for load in self._loads if self._is_told(*load)), key=lambda load: load[0])
        self._loads = [load for load in self._loads if not self._is_told(*load)]
        for _, model, layer in done:
            self.table.land(model, layer)
        return tuple((model, layer) for _, model, layer in done)

    def _is_told(self, end_ns: int, model: int, _layer: int) -> bool:
        under_way = self._under_way.get(model)
        return end_ns <= self._now_ns and not (self._beside and under_way)

    def _stall_ns(self, lane: int, work: Work) -> int:
        n_cycling, n_slots = self.table.n_cycling_and_slots(lane)
        return max(0, (n_cycling - n_slots) * self._pace.fetch_ns - self._pace.compute_ns(work))


def _repetitions(work: Work, n_steps: int) -> list[Work]:
    """The work of each step: contexts grow by a token a sequence."""
    contexts = (work.decode_context_tokens + nth * work.n_decode_seqs for nth in range(n_steps))
    return [replace(work, decode_context_tokens=n_tokens) for n_tokens in contexts]
