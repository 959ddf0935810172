"""MIRAGE: lend layers of models to the KV cache while it is short, and take them back.

The four questions of the paper composed: *when* (``remap/when.py``), *which model*
(``remap/which_model.py``), *how many* layers (``remap/how_many.py``) and *which layers*
(``remap/which_layers.py``). Settings marked "ours" have no counterpart in the paper.

Source: MIRAGE (arXiv 2507.11507) sections 5 and 6, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from policies.decision import Decision, Reason
from policies.memory.residency import Loan, Target
from policies.remap.grow import target_for, with_one_less, with_one_more
from policies.remap.how_many import (
    SlotRule,
    fits_the_papers_bound,
    fits_without_stall,
    hard_cap,
    link_load,
    slots_to_use,
    step_ns,
)
from policies.remap.when import Memory, can_spare, idle_ranges
from policies.remap.which_layers import Placement
from policies.remap.which_model import VictimOrder, lenders
from policies.serving.scheduler import Preemption
from policies.view import Ask, MemoryView, ModelView, RangeView


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirage:
    """Settings of MIRAGE; the defaults are the paper's where it gives them.

    Attributes:
        max_remapped_fraction: hard cap, share of a model's layers in (0, 1]; 1 is "uncapped" (7.6.2).
        layers_per_step: layers lent in one step at most.
        lend_from: which models may lend; the others are ablations.
        victim_order: ``mru`` or ``lru`` among inactive models.
        active_bound: ``no_stall``: our exact form of 5.3; ``paper``: T_T alpha <= T_compute; ``cap``: only the cap.
        inactive_bound: ``prefill``: T_T alpha <= its prefill estimate; ``cap``: only the cap; ``no_stall``: ours,
            what it could lend itself if it were active.
        slots: one slot (m = alpha + 1) or two (alpha + 2): the faster, or always the same, or by ``slot_threshold``.
        placement: ``nested`` (ours, no layer moves), ``even`` (the paper's eq. 3), or an ablation.
        reversion: whether lent layers come back at all (7.6.1).
        spare_margin: ours: share of its blocks that a borrower keeps free when a range goes back.
        hysteresis_steps: ours: steps for which a range must have been idle.
        patience_steps: ours: steps without a new question after "no".
        activation: what a model that has lent more than it may as the active one does when its turn
            comes: ``stream`` all of it, ``migrate`` the borrowers' blocks away, or ``preempt_borrower``.
        preemption: what happens to victims when lending is not enough.
    """

    lends: ClassVar[bool] = True

    max_remapped_fraction: float = 0.5
    layers_per_step: int = 1
    lend_from: Literal["both", "inactive", "active"] = "both"
    victim_order: VictimOrder = "mru"
    active_bound: Literal["no_stall", "paper", "cap"] = "no_stall"
    inactive_bound: Literal["prefill", "cap", "no_stall"] = "prefill"
    slots: SlotRule = "auto"
    slot_threshold: int = 9
    placement: Placement = "nested"
    reversion: bool = True
    spare_margin: float = 0.1
    hysteresis_steps: int = 16
    patience_steps: int = 8
    activation: Literal["stream", "migrate", "preempt_borrower"] = "stream"
    preemption: Preemption = "recompute"

    def __post_init__(self) -> None:
        if not 0 < self.max_remapped_fraction <= 1:
            raise ValueError(
                f"policy.mirage.max_remapped_fraction={self.max_remapped_fraction} is outside (0, 1]; "
                "1 lends without a cap, the baseline `recompute` lends nothing"
            )
        for name in ("layers_per_step", "hysteresis_steps", "patience_steps", "slot_threshold"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.mirage.{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.spare_margin < 1:
            raise ValueError(f"policy.mirage.spare_margin={self.spare_margin} is outside [0, 1)")

    @property
    def needs_requests(self) -> bool:
        """Only whoever preempts the borrower has to know its requests."""
        return self.activation == "preempt_borrower"

    @property
    def keeps_kv_on_host(self) -> bool:
        """Never."""
        return False

    def decide(self, view: MemoryView) -> Decision:
        """Lend when short, take back when eased, reclaim when a model with lent layers becomes active."""
        memory = view.policy_memory if isinstance(view.policy_memory, Memory) else Memory()
        match view.ask:
            case Ask.RUNNING_SHORT | Ask.WAITING_SHORT:
                return self._lend(view, memory)
            case Ask.EASE:
                return self._take_back(view, memory)
            case Ask.ACTIVATE:
                return self._activate(view, memory)
            case Ask.IDLE:
                return self._restore_idle(view, memory)
            case Ask.START:
                return _keep(view, Reason.NOTHING, memory)
            case Ask.EVICTION:
                return _keep(view, Reason.NOTHING, memory, self.patience_steps)

    def _lend(self, view: MemoryView, memory: Memory) -> Decision:
        if not memory.may_lend(view.step, self.layers_per_step):
            return _keep(view, Reason.ONE_A_STEP, memory)
        refusal = Reason.AT_CAP
        for lender in lenders(view.models, self.victim_order):
            model = view.models[lender]
            if not self._may_lend_from(model) or not view.models[view.asker].blocks_per_home[lender]:
                continue
            if not self._within_cap(model, len(model.residency.loans) + 1):
                continue
            target = self._one_more(model, view.asker)
            if target is None:
                continue
            if not model.is_active and self.inactive_bound == "no_stall" and not _runs_without_stall(model, target):
                continue
            if model.is_active and not self._within_active_bound(model, target):
                refusal = Reason.WOULD_STALL
                continue
            if model.is_active and not _link_carries(view, lender, target):
                refusal = Reason.LINK_FULL
                continue
            reason = Reason.LEND_ACTIVE if model.is_active else Reason.LEND_INACTIVE
            return _change(view, lender, target, reason, memory.lent(view.step))
        return _keep(view, refusal, memory.pressed(), self.patience_steps)

    def _may_lend_from(self, model: ModelView) -> bool:
        if model.residency.n_layers < 3:  # two slots and a home
            return False
        return self.lend_from == "both" or (self.lend_from == "active") == model.is_active

    def _one_more(self, model: ModelView, borrower: int) -> Target | None:
        n_remapped = len(model.residency.loans) + 1
        targets = {
            n_slots: with_one_more(model.residency, borrower, n_slots, self.placement)
            for n_slots in self._slot_choices(n_remapped)
        }
        return _fastest(model, self.slots, self.slot_threshold, targets)

    def _slot_choices(self, n_remapped: int) -> tuple[int, ...]:
        if self.slots == "auto":
            return (1, 2)
        return (slots_to_use(self.slots, n_remapped, self.slot_threshold, 0, 0),)

    def _within_cap(self, model: ModelView, n_remapped: int) -> bool:
        """Whether the model may lend so many layers, whichever they are."""
        if n_remapped > hard_cap(model.residency.n_layers, self.max_remapped_fraction):
            return False
        if model.is_active or self.inactive_bound != "prefill":
            return True
        estimate_ns = model.weights_ns if model.prefill_ns is None else model.prefill_ns
        return fits_the_papers_bound(n_remapped, model.fetch_ns, estimate_ns)

    def _within_active_bound(self, model: ModelView, target: Target) -> bool:
        match self.active_bound:
            case "cap":
                return True
            case "paper":
                return fits_the_papers_bound(len(target.loans), model.fetch_ns, _decode_ns(model))
            case "no_stall":
                return _runs_without_stall(model, target)

    def _take_back(self, view: MemoryView, memory: Memory) -> Decision:
        if not self.reversion:
            return _keep(view, Reason.NOTHING, memory, self.patience_steps)
        idle = idle_ranges(view)
        if not idle:
            return self._reshape(view, memory.pressed(), Reason.IN_USE)
        urgent = [lent for lent in idle if self._slows_the_active(view, lent)]
        spare = urgent or [lent for lent in idle if can_spare(view, lent, self.spare_margin)]
        if not spare:
            return self._reshape(view, memory.pressed(), Reason.IN_USE)
        memory = memory.eased(view.step)
        assert memory.eased_since is not None
        waited = view.step - memory.eased_since
        if not urgent and waited < self.hysteresis_steps:
            return _keep(view, Reason.WAITING_TO_REVERT, memory, self.hysteresis_steps - waited)
        return self._revert(view, self._first_to_go(view, spare), memory)

    def _slows_the_active(self, view: MemoryView, lent: RangeView) -> bool:
        model = view.models[lent.lender]
        return model.is_active and not self._within_active_bound(model, model.residency.wanted)

    def _first_to_go(self, view: MemoryView, spare: list[RangeView]) -> RangeView:
        """The active model's first (they cost transfers every step), then in reverse order of lending."""
        order = {lender: rank for rank, lender in enumerate(reversed(lenders(view.models, self.victim_order)))}
        latest = {
            (lender, loan.home): -position
            for lender, model in enumerate(view.models)
            for position, loan in enumerate(model.residency.loans)
        }
        return min(spare, key=lambda lent: (order[lent.lender], latest[lent.lender, lent.home]))

    def _revert(self, view: MemoryView, lent: RangeView, memory: Memory) -> Decision:
        model = view.models[lent.lender]
        n_remapped = len(model.residency.loans) - 1
        targets = {
            n_slots: with_one_less(model.residency, lent.home, n_slots, self.placement)
            for n_slots in self._slot_choices(n_remapped)
        }
        target = _fastest(model, self.slots, self.slot_threshold, targets)
        if target is None:
            return _keep(view, Reason.WAITING_TO_REVERT, memory)
        return _change(view, lent.lender, target, Reason.REVERT, memory)

    def _reshape(self, view: MemoryView, memory: Memory, otherwise: Reason) -> Decision:
        """Give the active model one slot more or less if its steps become shorter by that (by 5 %, ours)."""
        active = [index for index, model in enumerate(view.models) if model.is_active and model.residency.loans]
        for lender in active if self.slots == "auto" else ():
            model = view.models[lender]
            now = model.residency.wanted
            n_slots = 3 - now.n_slots
            if len(now.loans) + n_slots > model.residency.n_layers:
                continue
            other = target_for(model.residency, now.loans, n_slots, self.placement)
            if {layer for layer, _ in model.residency.loading} & {*other.cycling}:
                continue
            if _predicted_step_ns(model, other) * 20 < _predicted_step_ns(model, now) * 19:
                return _change(view, lender, other, Reason.RESHAPE, memory)
        return _keep(view, otherwise, memory, self.patience_steps)

    def _activate(self, view: MemoryView, memory: Memory) -> Decision:
        """Give up what the model may not lend now that it is active: ranges with the fewest blocks in use first."""
        model = view.models[view.asker]
        if self.activation == "stream" or self._within_active_bound(model, model.residency.wanted):
            return _keep(view, Reason.NOTHING, memory)
        abroad = [lent for lent in view.ranges if lent.lender == view.asker != lent.borrower]
        kept, reclaimed = model.residency.wanted, set[tuple[int, int]]()
        for lent in sorted(abroad, key=lambda lent: (lent.n_referenced, lent.home)):
            loans = tuple(loan for loan in kept.loans if loan.home != lent.home)
            kept = self._reshaped(model, loans)
            reclaimed.add((lent.lender, lent.home))
            if self._within_active_bound(model, kept):
                break
        if {layer for layer, _ in model.residency.loading} & {*kept.cycling}:
            return _keep(view, Reason.WAITING_TO_REVERT, memory)
        holders = [
            request.request_id for other in view.models for request in other.requests if reclaimed & {*request.ranges}
        ]
        return Decision(
            targets=_with(view, view.asker, kept),
            reason=Reason.RECLAIM,
            policy_memory=memory,
            preempt=tuple(holders) if self.activation == "preempt_borrower" else (),
            migrate=self.activation == "migrate",
        )

    def _reshaped(self, model: ModelView, loans: tuple[Loan, ...]) -> Target:
        """These loans, with as many slots as are best for them."""
        targets = {
            n_slots: target_for(model.residency, loans, n_slots, self.placement)
            for n_slots in self._slot_choices(len(loans))
        }
        target = _fastest(model, self.slots, self.slot_threshold, targets)
        assert target is not None
        return target

    def _restore_idle(self, view: MemoryView, memory: Memory) -> Decision:
        """No model has work: the link is free, every empty range goes back."""
        idle = idle_ranges(view) if self.reversion else ()
        if not idle:
            return _keep(view, Reason.NOTHING, memory)
        return self._revert(view, self._first_to_go(view, list(idle)), memory)


def _decode_ns(model: ModelView) -> int:
    return model.weights_ns if model.decode_ns is None else model.decode_ns


def _predicted_step_ns(model: ModelView, target: Target) -> int:
    n_layers = model.residency.n_layers
    layer_ns = _decode_ns(model) // n_layers
    return step_ns(n_layers, target.cycling, target.n_slots, layer_ns, model.fetch_ns, model.rest_ns)


def _runs_without_stall(model: ModelView, target: Target) -> bool:
    n_layers = model.residency.n_layers
    step = _predicted_step_ns(model, target)
    return fits_without_stall(step, n_layers, _decode_ns(model) // n_layers, model.rest_ns)


def _fastest(model: ModelView, rule: SlotRule, threshold: int, targets: Mapping[int, Target | None]) -> Target | None:
    """The target with one slot or with two, as the rule says, among those that are possible."""
    one, two = targets.get(1), targets.get(2)
    if one is None or two is None:
        return one or two
    n_slots = slots_to_use(
        rule, len(one.loans), threshold, _predicted_step_ns(model, one), _predicted_step_ns(model, two)
    )
    return targets[n_slots]


def _link_carries(view: MemoryView, lender: int, target: Target) -> bool:
    """Whether all running models together leave the link enough time (spatial sharing)."""
    running = [index for index, model in enumerate(view.models) if model.is_active]
    if len(running) < 2:
        return True
    cycles: list[tuple[int, int, int]] = []
    for index in running:
        model = view.models[index]
        n_cycling = len(target.cycling) if index == lender else len(model.residency.wanted.cycling)
        cycles.append((n_cycling, model.fetch_ns, _decode_ns(model)))
    return link_load(cycles) <= 1


def _with(view: MemoryView, lender: int, target: Target) -> tuple[Target, ...]:
    return tuple(target if index == lender else model.residency.wanted for index, model in enumerate(view.models))


def _change(view: MemoryView, lender: int, target: Target, reason: Reason, memory: Memory) -> Decision:
    return Decision(targets=_with(view, lender, target), reason=reason, policy_memory=memory)


def _keep(view: MemoryView, reason: Reason, memory: Memory, quiet_steps: int = 1) -> Decision:
    wanted = tuple(model.residency.wanted for model in view.models)
    return Decision(targets=wanted, reason=reason, quiet_steps=quiet_steps, policy_memory=memory)
