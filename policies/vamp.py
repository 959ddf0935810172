"""VAMP: before cached blocks are evicted, weigh that against offloading experts and against preempting a request.

Of one mixture-of-experts model, the memory of expert weights is lent to its own KV cache, in increments; what
is offloaded is staged in every step. An allocation that needs more blocks without content than are free gets
them from the cheapest of four options (``costs.py``).

Source: VAMP (arXiv 2609.13537) sections IV and V. Settings marked "ours" have no counterpart there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from policies.costs import (
    Coefficients,
    Costs,
    Option,
    eviction_us,
    offload_us,
    preemption_us,
    reuse_probability,
    steps_to_charge,
)
from policies.decision import Decision, Reason
from policies.memory.experts import ExpertResidency, OffloadCap
from policies.serving.scheduler import Preemption
from policies.shortage import Shortage, Victim
from policies.view import Ask, MemoryView

NS_PER_US = 1000

REASONS = {
    Option.EVICT: Reason.EVICT,
    Option.OFFLOAD: Reason.OFFLOAD,
    Option.BOTH: Reason.OFFLOAD_AND_EVICT,
    Option.PREEMPT: Reason.PREEMPT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to do about a shortage, with the price of every option.

    Attributes:
        option: ``None``: nothing can be done.
        n_increments: increments of experts that are to be offloaded, those that are included.
        evict: cached blocks to forget, in order.
        preempt: requests to stop, in order.
    """

    option: Option | None
    costs: Costs
    n_increments: int
    evict: tuple[int, ...] = ()
    preempt: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vamp:
    """Settings of VAMP; the defaults are the paper's where it gives them.

    Attributes:
        max_offloaded_fraction: share of a layer's experts that may be offloaded (r); VAMP-15 is 0.15.
        multiple_shards, buffer_shards, increment_groups: see ``OffloadCap``.
        coefficients: of the costs.
        increments: ``one``: an offload adds one increment, and the question is asked again; ``gap``: as many as
            close the gap. The paper counts 207 offloads in a run at whose end about as many increments were out.
        measured: ours: prefill and reload are priced by what they take on this machine.
        foresight: ours: knows which blocks will be hit again, as no server can: an upper bound.
        restore: ours: experts come back while memory is idle; the paper's never do.
        hysteresis_steps: ours: steps for which the last increment must have been idle before it comes back.
        spare_margin: ours: share of all blocks that stay empty when it does.
        patience_steps: ours: steps for which a "no" holds, unless blocks become free.
    """

    lends: ClassVar[bool] = True

    max_offloaded_fraction: float = 0.15
    multiple_shards: int = 4
    buffer_shards: int | None = None
    increment_groups: int = 4
    coefficients: Coefficients = field(default_factory=Coefficients)
    increments: Literal["one", "gap"] = "one"
    measured: bool = False
    foresight: bool = False
    restore: bool = False
    hysteresis_steps: int = 64
    spare_margin: float = 0.1
    patience_steps: int = 1000

    def __post_init__(self) -> None:
        _ = self.cap  # refuses what is out of range
        for name in ("hysteresis_steps", "patience_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.vamp.{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.spare_margin < 1:
            raise ValueError(f"policy.vamp.spare_margin={self.spare_margin} is outside [0, 1)")

    @property
    def cap(self) -> OffloadCap:
        """How far experts may be offloaded."""
        return OffloadCap(
            fraction=self.max_offloaded_fraction,
            multiple_shards=self.multiple_shards,
            buffer_shards=self.buffer_shards,
            increment_groups=self.increment_groups,
        )

    @property
    def needs_requests(self) -> bool:
        """Never: a shortage says what it has to know of them."""
        return False

    @property
    def preemption(self) -> Preemption:
        """What happens to every victim."""
        return "recompute"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Never."""
        return False

    def decide(self, view: MemoryView) -> Decision:
        """Before an eviction do what is cheapest; while memory is idle let experts come back, if that is wanted."""
        match view.ask:
            case Ask.EVICTION:
                return self._make_room(view)
            case Ask.EASE:
                return self._take_back(view, at_once=False)
            case Ask.IDLE:
                return self._take_back(view, at_once=True)
            case Ask.RUNNING_SHORT | Ask.WAITING_SHORT | Ask.ACTIVATE | Ask.START:
                return _decision(view, Reason.NOTHING)

    def _make_room(self, view: MemoryView) -> Decision:
        experts, short = view.models[view.asker].experts, view.shortage
        assert experts is not None
        assert short is not None
        choice = self.choose(experts, short)
        reason = REASONS[choice.option] if choice.option else Reason.NO_WAY
        return replace(
            _decision(view, reason, n_increments=choice.n_increments, quiet_steps=self.patience_steps),
            evict=choice.evict,
            preempt=choice.preempt,
            costs=choice.costs,
        )

    def _take_back(self, view: MemoryView, *, at_once: bool) -> Decision:
        """Return the last increment once it has been idle for long enough; the policy remembers since when it is."""
        model = view.models[view.asker]
        last = next((lent for lent in view.ranges if lent.lender == view.asker), None)
        if not self.restore or last is None or model.experts is None:
            return _decision(view, Reason.NOTHING, quiet_steps=self.patience_steps)
        n_spare = model.n_empty_blocks - last.n_blocks
        if last.n_referenced or n_spare < self.spare_margin * model.n_blocks:
            return replace(_decision(view, Reason.IN_USE), policy_memory=None)
        since = view.policy_memory if isinstance(view.policy_memory, int) else view.step
        waited = view.step - since
        if not at_once and waited < self.hysteresis_steps:
            quiet_steps = self.hysteresis_steps - waited
            return replace(_decision(view, Reason.WAITING_TO_REVERT, quiet_steps=quiet_steps), policy_memory=since)
        return replace(
            _decision(view, Reason.RESTORE, n_increments=model.experts.n_increments - 1), policy_memory=since
        )

    def choose(self, experts: ExpertResidency, short: Shortage) -> Choice:
        """Take the cheapest option that is feasible."""
        costs = self.price(experts, short)
        option, n_now = costs.cheapest, experts.n_increments
        match option:
            case Option.EVICT:
                return Choice(option=option, costs=costs, n_increments=n_now, evict=_blocks(short.victims))
            case Option.OFFLOAD:
                n_more = 1 if self.increments == "one" else -(-_n_groups(experts, short) // self.increment_groups)
                return Choice(option=option, costs=costs, n_increments=min(n_now + n_more, experts.most_increments))
            case Option.BOTH:
                n_whole, n_rest = _whole_increments(experts, short)
                evict = _blocks(short.victims[:n_rest])
                return Choice(option=option, costs=costs, n_increments=n_now + n_whole, evict=evict)
            case Option.PREEMPT:
                preempt = tuple(each.request_id for each in short.preemptable[: short.n_blocks])
                return Choice(option=option, costs=costs, n_increments=n_now, preempt=preempt)
            case None:
                return Choice(option=None, costs=costs, n_increments=n_now)

    def price(self, experts: ExpertResidency, short: Shortage) -> Costs:
        """Price every option that is feasible: C_c, C_e, C_p and C_b of the paper."""
        by = self._coefficients(experts, short)
        n_groups = _n_groups(experts, short)
        n_whole, n_rest = _whole_increments(experts, short)
        evict = offload = both = preempt = None
        if len(short.victims) >= short.n_blocks:
            evict = self._eviction_us(short, short.n_blocks, by)
        if n_groups <= experts.n_groups_left:
            offload = _offload_us(experts, short, n_groups, by)
        if n_whole and n_rest <= len(short.victims):
            both = _offload_us(experts, short, n_whole * self.increment_groups, by)
            both += self._eviction_us(short, n_rest, by)
        if len(short.preemptable) >= short.n_blocks:
            queue_us = by.queue_us if short.queue_ns is None else short.queue_ns / NS_PER_US
            preempt = preemption_us(short.n_blocks, short.preemptable[0].n_partial_tokens, queue_us, by)
        return Costs(evict_us=evict, offload_us=offload, both_us=both, preempt_us=preempt)

    def _eviction_us(self, short: Shortage, n_blocks: int, by: Coefficients) -> float:
        reuses = [self._reuse(victim, short.hit_rate, by) for victim in short.victims[:n_blocks]]
        return eviction_us(reuses, short.block_tokens, by)

    def _reuse(self, victim: Victim, hit_rate: float, by: Coefficients) -> float:
        if self.foresight and victim.is_reused is not None:
            return float(victim.is_reused)
        return reuse_probability(victim.age_steps, hit_rate, by)

    def _coefficients(self, experts: ExpertResidency, short: Shortage) -> Coefficients:
        if not self.measured:
            return self.coefficients
        reload_us = experts.layout.n_active * short.shard_fetch_ns / NS_PER_US
        if short.prefill_token_ns is None:
            return replace(self.coefficients, reload_us=reload_us)
        return replace(self.coefficients, reload_us=reload_us, prefill_token_us=short.prefill_token_ns / NS_PER_US)


def _decision(view: MemoryView, reason: Reason, *, n_increments: int | None = None, quiet_steps: int = 1) -> Decision:
    """Leave everything as it is, but so many increments of the asker's experts."""
    increments = [model.experts.n_increments if model.experts else 0 for model in view.models]
    if n_increments is not None:
        increments[view.asker] = n_increments
    return Decision(
        targets=tuple(model.residency.wanted for model in view.models),
        reason=reason,
        quiet_steps=quiet_steps,
        policy_memory=view.policy_memory,
        increments=tuple(increments),
    )


def _n_groups(experts: ExpertResidency, short: Shortage) -> int:
    """Groups of all eligible layers together that hold the gap."""
    return -(-short.n_blocks * short.block_bytes // experts.layout.group_bytes)


def _whole_increments(experts: ExpertResidency, short: Shortage) -> tuple[int, int]:
    """Increments that the gap fills and the cap allows, and the blocks that remain."""
    increment_bytes = experts.cap.increment_groups * experts.layout.group_bytes
    n_left = experts.n_groups_left // experts.cap.increment_groups
    n_whole = min(short.n_blocks * short.block_bytes // increment_bytes, n_left)
    return n_whole, short.n_blocks - n_whole * increment_bytes // short.block_bytes


def _offload_us(experts: ExpertResidency, short: Shortage, n_groups: int, by: Coefficients) -> float:
    layout = experts.layout
    n_shards = n_groups * layout.group_shards
    n_steps = steps_to_charge(short.n_steps_left, by)
    return offload_us(n_shards, layout.n_experts, layout.n_active, n_steps, by)


def _blocks(victims: Sequence[Victim]) -> tuple[int, ...]:
    return tuple(victim.block for victim in victims)
