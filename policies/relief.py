"""From a short pool to pages moved: view, decide, transition, ledger, apply.

This is the only place where a policy is asked and where its answer takes effect.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Protocol

from policies.backend import Backend, Change
from policies.decision import Decision
from policies.errors import HbmOverdrawn
from policies.journal import HbmUse, Journal
from policies.lane import Lane
from policies.memory.experts import Offload, Reload
from policies.memory.ledger import Ledger
from policies.memory.ops import HoldOnHost, Lend, MoveBlocks, Op, Withdraw
from policies.memory.residency import Target
from policies.policy import Policy
from policies.serving.pool import Pool
from policies.serving.tenancy import Mig, Sharing, TemporalSharing
from policies.shortage import Shortage
from policies.types import HardwareProfile
from policies.view import Ask, MemoryView
from policies.views import Views


class Clock(Protocol):
    """What relief needs to know of the engine: steps done, and who runs."""

    n_steps: int
    active: frozenset[int]


class Relief:
    """Asks the policy and carries out its answer on ledger, backend and block pools.

    Models that run side by side are served by processes of their own: each asks a policy of its own, which
    remembers and counts the steps of that model alone, and is shown its ranges alone.
    """

    def __init__(
        self,
        *,
        lanes: Seq[Lane],
        policy: Policy,
        ledger: Ledger,
        backend: Backend,
        hardware: HardwareProfile,
        journal: Journal,
        clock: Clock,
        sharing: Sharing,
    ) -> None:
        self._lanes = lanes
        self._policy = policy
        self._ledger = ledger
        self._backend = backend
        self._hardware = hardware
        self._journal = journal
        self._clock = clock
        self._apart = not isinstance(sharing, TemporalSharing)
        rates = [_bandwidth(hardware, sharing, lane.index) for lane in lanes]
        self._views = Views(lanes, ledger, hardware, rates, shows_requests=policy.needs_requests)
        self._memories: list[object] = [None] * len(lanes)  # of the policy; one for all unless each asks its own
        self._refused: list[tuple[Target, ...] | None] = [None] * len(lanes)
        self._changes_at_ns: int = 0
        self._n_changes = 0
        n_increments = sum(experts.most_increments for experts in ledger.experts if experts is not None)
        self._most_changes = 4 * (sum(lane.shape.n_layers for lane in lanes) + n_increments)

    def grant(self, lane: Lane, n_short_blocks: int, ask: Ask) -> int:
        """Answer a scheduler that lacks blocks: how many were added to its pool."""
        if not self._policy.lends:
            return 0
        lane.asked.add(ask)
        before = _n_granted(lane, ask)
        self.consult(lane, ask, n_short_blocks)
        return max(0, _n_granted(lane, ask) - before)

    def consult(self, lane: Lane, ask: Ask, n_short_blocks: int = 0) -> bool:
        """Ask the policy, unless it has answered this lately; whether the memory changed.

        A "no" holds for the decision's ``quiet_steps``, counted in steps, not in
        submissions, so that leaps change nothing.
        """
        if not self._policy.lends or self._is_quiet(lane, ask, n_short_blocks) or self._is_restless():
            return False
        view = self._view(lane, ask, n_short_blocks)
        decision = self._policy.decide(view)
        moves = decision.targets != self._ledger.wanted or decision.increments not in ((), self._ledger.increments)
        wanted = moves or bool(decision.preempt or decision.evict)
        refused = wanted and not self._enact(lane, decision)
        changed = wanted and not refused
        asker = lane.index if self._apart else 0
        if not refused:  # what did not happen is not to be remembered
            self._memories[asker] = decision.policy_memory
        self._refused[asker] = decision.targets if refused else None
        if changed or decision.preempt:
            self._n_changes += not decision.evict  # of these there are no more than blocks
            self._hear_again(lane)
            self.publish_use()
        if not changed:
            lane.quiet_until[ask] = self.steps_of(lane) + decision.quiet_steps
            lane.quiet_blocks = n_short_blocks if ask is Ask.EVICTION else lane.quiet_blocks
        self._journal.decided(self._backend.now_ns, view, decision, changed=changed, refused=refused)
        return changed

    def steps_of(self, lane: Lane) -> int:
        """Steps so far, as the policy that the lane asks counts them."""
        return lane.n_steps if self._apart else self._clock.n_steps

    def blocks_became_free(self, lane: Lane) -> None:
        """Requests ended: what was refused for want of blocks may be asked again."""
        self._hear_again(lane)

    def publish_landed(self) -> None:
        """Enter loads that have landed: their layers no longer cycle."""
        for model, layer in self._backend.landed():
            self._backend.apply(Change(self._ledger.land(model, layer)))
            self._hear_again(self._lanes[model])
            self.publish_use()

    def publish_use(self) -> None:
        """Tell the journal who holds HBM now."""
        self._journal.hbm(self._backend.now_ns, [self._use(lane) for lane in self._lanes])

    def _is_restless(self) -> bool:
        """Whether the memory has changed so often at this instant that the policy might never let a step run.

        Lending and taking back every home and every increment twice over are as many changes as any plan can need.
        """
        now_ns = self._backend.now_ns
        if now_ns != self._changes_at_ns:
            self._changes_at_ns, self._n_changes = now_ns, 0
        return self._n_changes >= self._most_changes

    def _is_quiet(self, lane: Lane, ask: Ask, n_short_blocks: int) -> bool:
        """Whether a "no" still holds. Whether to evict depends on how much is short."""
        if self.steps_of(lane) >= lane.quiet_until.get(ask, 0):
            return False
        return ask is not Ask.EVICTION or n_short_blocks >= lane.quiet_blocks

    def _hear_again(self, lane: Lane) -> None:
        for each in (lane,) if self._apart else self._lanes:
            each.quiet_until.clear()
            each.blocked = False

    def _enact(self, asker: Lane, decision: Decision) -> bool:
        """Carry out a decision, all of its memory or none; whether it fitted."""
        for lane in self._lanes if decision.preempt else ():
            lane.scheduler.preempt(decision.preempt)
        try:
            plan = self._ledger.plan(decision.targets, self._n_referenced_after(decision), decision.increments)
            ended = self._ended(plan.ops)
            self._refuse_overdrawn_budgets(ended)
            if decision.migrate:
                self._vacate(ended)
            self._backend.apply(Change(plan.ops))
        except HbmOverdrawn:
            return False
        self._ledger.commit(plan)
        for op in plan.ops:
            self._tell_pool(op)
        if decision.evict:
            assert asker.asking is not None, "only its question names blocks to evict"
            asker.asking.pool.evict(decision.evict)
        return True

    def _n_referenced_after(self, decision: Decision) -> Callable[[int, int], int]:
        def n_referenced(lender: int, home: int) -> int:
            if decision.migrate:
                return 0
            return self._pool_over(lender, home).n_referenced((lender, home))

        return n_referenced

    def _refuse_overdrawn_budgets(self, ended: Seq[Withdraw]) -> None:
        """See to it that a budget that pools share has what these ranges brought into it.

        Raises:
            HbmOverdrawn: other blocks use it.
        """
        for lane in self._lanes:
            if lane.budget is not None:
                n_bytes = sum(self._range_bytes(op) for op in ended if self._lanes[op.borrower].budget is lane.budget)
                if n_bytes > lane.budget.free_bytes:
                    raise HbmOverdrawn(f"{n_bytes} bytes would leave a KV budget with {lane.budget.free_bytes} free")

    def _ended(self, ops: Seq[Op]) -> list[Withdraw]:
        """Ranges that leave a pool: lent homes, and units on the host as if they were such."""
        ended: list[Withdraw] = []
        for op in ops:
            match op:
                case Withdraw():
                    ended.append(op)
                case HoldOnHost(model):
                    n_layers = self._lanes[model].shape.n_layers
                    ended += [Withdraw(model, n_layers + unit, model) for unit in reversed(op.ended)]
                case _:
                    pass
        return ended

    def _range_bytes(self, op: Withdraw) -> int:
        borrower = self._lanes[op.borrower]
        return borrower.scheduler.pool.lent_range((op.lender, op.home)).n_blocks * borrower.block_bytes

    def _vacate(self, ended: Seq[Withdraw]) -> None:
        """Move live blocks out of ranges that end, in tables and on the device: that needs no memory that is not there.

        Raises:
            HbmOverdrawn: a borrower has not enough free blocks of its own; nothing moved.
        """
        for lane in self._lanes:
            pool = lane.scheduler.pool
            needed = sum(pool.n_referenced((op.lender, op.home)) for op in ended if op.borrower == lane.index)
            if needed > pool.n_base_free:
                raise HbmOverdrawn(f"model {lane.index}: {needed} blocks to move, {pool.n_base_free} free at home")
        for op in ended:
            lane = self._lanes[op.borrower]
            moves = tuple(lane.scheduler.vacate((op.lender, op.home)))
            if moves:
                self._backend.apply(Change((MoveBlocks(lane.index, moves, lane.block_bytes),)))

    def _tell_pool(self, op: Op) -> None:
        match op:
            case Lend(lender, home, borrower):
                lane = self._lanes[borrower]
                lane.scheduler.pool.add_range((lender, home), *lane.layout.range_of(lender, home))
            case Withdraw(lender, home, borrower):
                self._lanes[borrower].scheduler.pool.remove_range((lender, home))
            case HoldOnHost():
                self._hold_on_host(op)
            case Offload(model, increment, _):
                lane, experts = self._lanes[model], self._ledger.experts[model]
                assert lane.expert_kv is not None
                assert experts is not None
                lane.scheduler.pool.add_range((model, increment), *lane.expert_kv.range_of(experts, increment))
            case Reload(model, increment, _):
                self._lanes[model].scheduler.pool.remove_range((model, increment))
            case _:
                pass

    def _hold_on_host(self, op: HoldOnHost) -> None:
        lane = self._lanes[op.model]
        n_layers = lane.shape.n_layers
        for unit in reversed(op.ended):
            lane.scheduler.pool.remove_range((op.model, n_layers + unit))
        for unit in op.begun:
            assert op.after is not None
            first = lane.layout.first_host_block + unit * op.after.unit_blocks
            lane.scheduler.pool.add_range((op.model, n_layers + unit), first, op.after.unit_blocks)

    def _pool_over(self, lender: int, home: int) -> Pool:
        is_on_host = home >= self._lanes[lender].shape.n_layers
        if is_on_host or self._ledger.increments[lender]:
            return self._lanes[lender].scheduler.pool
        borrower = next(loan.borrower for loan in self._ledger.residencies[lender].loans if loan.home == home)
        return self._lanes[borrower].scheduler.pool

    def _view(self, lane: Lane, ask: Ask, n_short_blocks: int) -> MemoryView:
        asker = lane.index if self._apart else 0
        ranges = self._views.ranges()
        return MemoryView(
            step=self.steps_of(lane),
            ask=ask,
            asker=lane.index,
            n_short_blocks=n_short_blocks,
            hardware=self._hardware,
            models=self._views.models(self._clock.active),
            ranges=tuple([each for each in ranges if each.borrower == asker]) if self._apart else ranges,
            policy_memory=self._memories[asker],
            refused=self._refused[asker],
            shortage=self._shortage(lane, n_short_blocks) if ask is Ask.EVICTION else None,
        )

    def _shortage(self, lane: Lane, n_short_blocks: int) -> Shortage:
        experts = self._ledger.experts[lane.index]
        assert lane.asking is not None, "only schedulers that are set to ask do"
        return replace(
            lane.asking.shortage(n_short_blocks, lane.block_bytes),
            prefill_token_ns=lane.estimates.prefill_token_ns,
            shard_fetch_ns=self._hardware.link.fetch_ns(experts.layout.shard_bytes) if experts else 0,
        )

    def _use(self, lane: Lane) -> HbmUse:
        residency, pool = self._ledger.residencies[lane.index], lane.scheduler.pool
        experts, layer_bytes = self._ledger.experts[lane.index], lane.shape.layer_bytes
        offloaded_bytes, buffer_bytes = (experts.offloaded_bytes, experts.buffer_bytes) if experts else (0, 0)
        at_home_bytes = (residency.n_layers - len(residency.cycling)) * layer_bytes + lane.shape.other_bytes
        return HbmUse(
            model=lane.index,
            resident_bytes=at_home_bytes - offloaded_bytes,
            slot_bytes=residency.n_slots * layer_bytes + buffer_bytes,
            loading_bytes=len(residency.loading) * layer_bytes,
            lent_bytes=len(residency.loans) * layer_bytes + offloaded_bytes,
            n_base_blocks=pool.n_base,
            n_base_used=pool.n_base_used,
            n_lent_blocks=pool.n_blocks - pool.n_base,
            n_lent_used=pool.n_lent_used,
        )


def _bandwidth(hardware: HardwareProfile, sharing: Sharing, model: int) -> int:
    """Bytes/s of HBM that a model has when it is alone."""
    rate = hardware.hbm_bytes_per_s
    return sharing.part(rate, model) if isinstance(sharing, Mig) else rate


def _n_granted(lane: Lane, ask: Ask) -> int:
    """Blocks of the kind that is asked for: free ones, or before an eviction those without content."""
    if ask is Ask.EVICTION and lane.asking is not None:
        return lane.asking.pool.n_empty
    return lane.scheduler.pool.n_free
