"""A journal that holds the books of an engine against the world, whenever it is told anything."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import ClassVar, cast

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.lane import Lane, TrueLengths
from policies.memory.residency import Residency, Target
from policies.policy import Policy
from policies.serving.scheduler import Preemption, Scheduler, Step
from policies.serving.sequence import Sequence, State
from policies.types import Arrival
from policies.view import Ask, MemoryView, ModelView, RangeView
from tests.engine.null_backend import NullBackend
from tests.engine.recorder import Recorder
from tests.engine.worlds import PAGE_BYTES, Scene


class CountedLengths(TrueLengths):
    """True lengths that also know who has come."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: dict[int, Arrival] = {}

    def learn(self, arrival: Arrival) -> None:
        super().learn(arrival)
        self.arrived[arrival.request.request_id] = arrival


class Watched:
    """A policy that is asked everything twice; views are walked for what no server could know."""

    lends: ClassVar[bool] = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.before_decision: Callable[[MemoryView], None] = _nothing

    @property
    def needs_requests(self) -> bool:
        return self._policy.needs_requests

    @property
    def keeps_kv_on_host(self) -> bool:
        return self._policy.keeps_kv_on_host

    @property
    def preemption(self) -> Preemption:
        return self._policy.preemption

    def decide(self, view: MemoryView) -> Decision:
        self.before_decision(view)
        hash(view)  # frozen all the way down
        walk(view)
        decision = self._policy.decide(view)
        assert self._policy.decide(view) == decision
        return decision


def _nothing(_view: MemoryView) -> None:
    pass


def walk(value: object) -> None:
    """Go through all that a view leads to: values of a few kinds, and nothing that knows a true length."""
    if value is None or isinstance(value, bool | int | float | str | Enum):
        return
    if isinstance(value, tuple):
        for item in cast("tuple[object, ...]", value):
            walk(item)
        return
    assert is_dataclass(value), value
    assert not isinstance(value, Arrival | Sequence)
    for field in fields(value):
        walk(getattr(value, field.name))


def view_residencies(view: MemoryView) -> tuple[Residency, ...]:
    """Where layers were when the question was asked."""
    return tuple(model.residency for model in view.models)


class Auditor:
    """Passes everything on to a recorder and checks, each time, what must always hold."""

    def __init__(self, truth: CountedLengths) -> None:
        self.recorder = Recorder()
        self._truth = truth
        self._scene: Scene | None = None
        self._gone: dict[int, State] = {}
        self._due: set[int] = set()
        self._last_ns = 0
        self._last_active_steps: dict[int, int] = {}
        self._before: object = None
        self._refused: dict[int, tuple[Target, ...] | None] = {}  # by model, if each asks a policy of its own

    def watch(self, scene: Scene, policy: Policy) -> None:
        """From now on look at this engine."""
        self._scene = scene
        if isinstance(policy, Watched):
            policy.before_decision = self._remember

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        self.recorder.composed(lane, now_ns, step, scheduler)
        self._due |= {seq.request.request_id for seq in step.dropped}
        self._due |= {seq.request.request_id for seq, _ in step.ended}
        self._audit(now_ns)

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        self.recorder.ran(lane, batch, report)
        instants = [report.start_ns, *report.ends_ns]
        assert instants == sorted(instants)
        self._last_active_steps[lane] = self._watched.engine.n_steps + len(report.ends_ns)
        assert len({len(report.ends_ns), len(report.compute_ns), len(report.stall_ns), len(report.rest_ns)}) == 1
        self._audit(report.ends_ns[-1])

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        self.recorder.gaps(model, cause, gaps_ns, n_requests)
        assert n_requests > 0
        assert min(gaps_ns) >= 0

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        self.recorder.retired(lane, now_ns, seqs, scheduler)
        for seq in seqs:
            assert seq.state in (State.FINISHED, State.DROPPED)
            assert not seq.blocks
            assert seq.request.request_id not in self._gone, f"{seq} was told before"
            self._gone[seq.request.request_id] = seq.state
            self._due.discard(seq.request.request_id)
        assert now_ns <= self._watched.backend.now_ns
        self._audit(self._watched.backend.now_ns)

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        self.recorder.decided(now_ns, view, decision, changed=changed, refused=refused)
        ledger = self._watched.ledger
        asker = self._asker(view)
        assert view.refused == self._refused.get(asker)
        self._refused[asker] = decision.targets if refused else None
        if changed:
            assert ledger.wanted == decision.targets
            again = ledger.plan(decision.targets, lambda _lender, _home: 0)
            assert (again.ops, again.residencies) == ((), ledger.residencies)
        else:
            assert ledger.residencies == view_residencies(view)
            if not (decision.preempt or decision.migrate):  # requests that were stopped and blocks that moved stay so
                assert self._state() == self._before, "nothing was changed, but something is different"
        self._audit(now_ns, mid_composition=True)

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        self.recorder.hbm(now_ns, uses)
        for lane, use in zip(self._watched.lanes, uses, strict=True):
            homes_bytes = use.resident_bytes + use.slot_bytes + use.loading_bytes + use.lent_bytes
            assert homes_bytes == lane.shape.total_bytes
            assert 0 <= use.n_base_used <= use.n_base_blocks
            assert 0 <= use.n_lent_used <= use.n_lent_blocks
        self._audit(now_ns, mid_composition=True)

    @property
    def _watched(self) -> Scene:
        assert self._scene is not None
        return self._scene

    def _audit(self, now_ns: int, *, mid_composition: bool = False) -> None:
        assert self._last_ns <= now_ns == self._watched.backend.now_ns
        self._last_ns = now_ns
        self._audit_requests(mid_composition)
        for lane in self._watched.lanes:
            self._audit_blocks(lane, mid_composition)
        self._audit_budget()
        self._audit_pages()

    def _audit_requests(self, mid_composition: bool) -> None:
        """Requests in = waiting + running + swapped + finished + dropped; those in between are about to be told."""
        live = [seq.request.request_id for lane in self._watched.lanes for seq in lane.scheduler.live()]
        assert len(live) == len({*live}), "a request is in two places"
        assert not {*live} & self._gone.keys(), "a request is live after its end"
        between = self._truth.arrived.keys() - {*live} - self._gone.keys()
        assert mid_composition or between == self._due

    def _audit_blocks(self, lane: Lane, mid_composition: bool) -> None:
        """Every block is free or in the table of a running sequence (which may be on its way to its queue)."""
        pool, free = lane.scheduler.pool, lane.scheduler.pool.free_order()
        used = {block for seq in lane.scheduler.live() for block in seq.blocks}
        borrowed = [
            lane.layout.range_of(lender, loan.home)
            for lender, residency in enumerate(self._watched.ledger.residencies)
            for loan in residency.loans
            if loan.borrower == lane.index
        ]
        if (on_host := self._watched.ledger.residencies[lane.index].on_host) is not None:
            borrowed.append((lane.layout.first_host_block, on_host.n_units * on_host.unit_blocks))
        there = {*range(pool.n_base)}.union(*(range(first, first + n) for first, n in borrowed))
        assert len({*free}) == len(free)
        assert used.isdisjoint(free)
        assert used | {*free} <= there
        assert (pool.n_used, pool.n_blocks) == (len(there) - len(free), len(there))
        assert mid_composition or pool.n_used == len(used)

    def _audit_budget(self) -> None:
        """What pools share is what the partitions and the lent ranges bring in, less what is in use."""
        lanes = self._watched.lanes
        if (budget := lanes[0].budget) is not None:
            used = sum(lane.scheduler.pool.n_used * lane.block_bytes for lane in lanes)
            lent = sum((lane.scheduler.pool.n_blocks - lane.scheduler.pool.n_base) * lane.block_bytes for lane in lanes)
            base = sum(part.kv_pages for part in self._watched.ledger.partitions) * PAGE_BYTES
            assert (budget.n_bytes, budget.free_bytes) == (base + lent, base + lent - used)

    def _audit_pages(self) -> None:
        ledger, backend = self._watched.ledger, self._watched.backend
        held = {holder: n_pages for holder, n_pages in ledger.holdings().items() if n_pages}
        n_pages = sum(part.n_pages for part in ledger.partitions) + ledger.unassigned_pages
        assert sum(held.values()) == n_pages
        assert min(held.values()) > 0
        if isinstance(backend, NullBackend):
            assert backend.table.holdings() == held

    def _remember(self, view: MemoryView) -> None:
        """Before a decision: what the policy sees is what there is."""
        scene = self._watched
        self._before = self._state()
        n_steps = scene.lanes[view.asker].n_steps if scene.is_spatial else scene.engine.n_steps
        waits = view.ask is Ask.START or (scene.is_spatial and view.ask is Ask.IDLE)
        assert (view.step, view.models[view.asker].is_active) == (n_steps, not waits)
        for lane, model in zip(scene.lanes, view.models, strict=True):
            pool, scheduler = lane.scheduler.pool, lane.scheduler
            assert (model.n_base_blocks, model.n_blocks) == (pool.n_base, pool.n_blocks)
            assert model.n_free_blocks == pool.n_free
            assert (model.n_waiting, model.n_running) == (scheduler.n_waiting, scheduler.n_running)
            assert model.residency == scene.ledger.residencies[lane.index]
            assert model.last_active_step == self._last_active_steps.get(lane.index)
            assert not scene.is_spatial or {loan.borrower for loan in model.residency.loans} <= {lane.index}
        assert not scene.is_spatial or {lent.borrower for lent in view.ranges} <= {view.asker}
        for lent in view.ranges:
            first, n_blocks = _block_range(scene.lanes[lent.borrower], lent, view.models[lent.lender])
            free = {*scene.lanes[lent.borrower].scheduler.pool.free_order()}
            assert (lent.n_blocks, lent.n_referenced) == (n_blocks, len({*range(first, first + n_blocks)} - free))

    def _asker(self, view: MemoryView) -> int:
        return view.asker if self._watched.is_spatial else 0

    def _state(self) -> object:
        """All that a decision may change."""
        scene = self._watched
        pools = [(lane.scheduler.pool.free_order(), lane.scheduler.pool.n_blocks) for lane in scene.lanes]
        seqs = [
            (seq.request.request_id, seq.state, [*seq.blocks]) for lane in scene.lanes for seq in lane.scheduler.live()
        ]
        return scene.ledger.residencies, pools, seqs


def _block_range(lane: Lane, lent: RangeView, lender: ModelView) -> tuple[int, int]:
    """First block id and number of blocks of a lent range, or of a unit on the host."""
    if not lent.is_on_host:
        return lane.layout.range_of(lent.lender, lent.home)
    on_host, unit = lender.residency.on_host, lent.home - lender.residency.n_layers
    assert on_host is not None
    return lane.layout.first_host_block + unit * on_host.unit_blocks, on_host.unit_blocks
