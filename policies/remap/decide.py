"""What MIRAGE answers to each question, from a view and its settings: lend, take back, reclaim.

A file of its own, as it is asked several times a request: settings (``policies/mirage.py``) stay plain Python, this
is compiled.

Source: MIRAGE (arXiv 2507.11507) sections 5 and 6, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from policies.decision import Decision, Reason
from policies.memory.residency import Loan, Target
from policies.remap.grow import reshaped, target_for, with_one_less, with_one_more
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
from policies.remap.which_model import lenders
from policies.view import Ask, MemoryView, ModelView, RangeView

if TYPE_CHECKING:
    from policies.mirage import Mirage


def decide(settings: Mirage, view: MemoryView) -> Decision:
    """Lend when short, take back when eased, reclaim when a model with lent layers becomes active."""
    memory = view.policy_memory if isinstance(view.policy_memory, Memory) else Memory()
    match view.ask:
        case Ask.RUNNING_SHORT | Ask.WAITING_SHORT:
            return _lend(settings, view, memory)
        case Ask.EASE:
            return _take_back(settings, view, memory)
        case Ask.ACTIVATE:
            return _activate(settings, view, memory)
        case Ask.IDLE:
            return _restore_idle(settings, view, memory)
        case Ask.START:
            return _keep(view, Reason.NOTHING, memory)
        case Ask.EVICTION:
            return _keep(view, Reason.NOTHING, memory, settings.patience_steps)


def _lend(settings: Mirage, view: MemoryView, memory: Memory) -> Decision:
    if not memory.may_lend(view.step, settings.layers_per_step):
        return _keep(view, Reason.ONE_A_STEP, memory)
    refusal = Reason.AT_CAP
    for lender in lenders(view.models, settings.victim_order):
        model = view.models[lender]
        if not _may_lend_from(settings, model) or not view.models[view.asker].blocks_per_home[lender]:
            continue
        if not _within_cap(settings, model, len(model.residency.loans) + 1):
            continue
        target = _one_more(settings, model, view.asker)
        if target is None:
            continue
        if not model.is_active and settings.inactive_bound == "no_stall" and not _runs_without_stall(model, target):
            continue
        if model.is_active and not _within_active_bound(settings, model, target):
            refusal = Reason.WOULD_STALL
            continue
        if model.is_active and not _link_carries(view, lender, target):
            refusal = Reason.LINK_FULL
            continue
        reason = Reason.LEND_ACTIVE if model.is_active else Reason.LEND_INACTIVE
        return _change(view, lender, target, reason, memory.lent(view.step))
    return _keep(view, refusal, memory.pressed(), settings.patience_steps)


def _may_lend_from(settings: Mirage, model: ModelView) -> bool:
    if model.residency.n_layers < 3:  # two slots and a home
        return False
    return settings.lend_from == "both" or (settings.lend_from == "active") == model.is_active


def _one_more(settings: Mirage, model: ModelView, borrower: int) -> Target | None:
    n_remapped = len(model.residency.loans) + 1
    targets = {
        n_slots: with_one_more(model.residency, borrower, n_slots, settings.placement)
        for n_slots in _slot_choices(settings, n_remapped)
    }
    return _fastest(model, settings.slots, settings.slot_threshold, targets)


def _slot_choices(settings: Mirage, n_remapped: int) -> tuple[int, ...]:
    if settings.slots == "auto":
        return (1, 2)
    return (slots_to_use(settings.slots, n_remapped, settings.slot_threshold, 0, 0),)


def _within_cap(settings: Mirage, model: ModelView, n_remapped: int) -> bool:
    """Whether the model may lend so many layers, whichever they are."""
    if n_remapped > hard_cap(model.residency.n_layers, settings.max_remapped_fraction):
        return False
    if model.is_active or settings.inactive_bound != "prefill":
        return True
    estimate_ns = model.weights_ns if model.prefill_ns is None else model.prefill_ns
    return fits_the_papers_bound(n_remapped, model.fetch_ns, estimate_ns)


def _within_active_bound(settings: Mirage, model: ModelView, target: Target) -> bool:
    match settings.active_bound:
        case "cap":
            return True
        case "paper":
            return fits_the_papers_bound(len(target.loans), model.fetch_ns, _decode_ns(model))
        case "no_stall":
            return _runs_without_stall(model, target)


def _take_back(settings: Mirage, view: MemoryView, memory: Memory) -> Decision:
    if not settings.reversion:
        return _keep(view, Reason.NOTHING, memory, settings.patience_steps)
    idle = idle_ranges(view)
    if not idle:
        return _reshape(settings, view, memory.pressed(), Reason.IN_USE)
    urgent = [lent for lent in idle if _slows_the_active(settings, view, lent)]
    spare = urgent or [lent for lent in idle if can_spare(view, lent, settings.spare_margin)]
    if not spare:
        return _reshape(settings, view, memory.pressed(), Reason.IN_USE)
    memory = memory.eased(view.step)
    assert memory.eased_since is not None
    waited = view.step - memory.eased_since
    if not urgent and waited < settings.hysteresis_steps:
        return _keep(view, Reason.WAITING_TO_REVERT, memory, settings.hysteresis_steps - waited)
    return _revert(settings, view, _first_to_go(settings, view, spare), memory)


def _slows_the_active(settings: Mirage, view: MemoryView, lent: RangeView) -> bool:
    model = view.models[lent.lender]
    return model.is_active and not _within_active_bound(settings, model, model.residency.wanted)


def _first_to_go(settings: Mirage, view: MemoryView, spare: list[RangeView]) -> RangeView:
    """The active model's first (they cost transfers every step), then in reverse order of lending."""
    order = {lender: rank for rank, lender in enumerate(reversed(lenders(view.models, settings.victim_order)))}
    latest = {
        (lender, loan.home): -position
        for lender, model in enumerate(view.models)
        for position, loan in enumerate(model.residency.loans)
    }
    return min(spare, key=lambda lent: (order[lent.lender], latest[lent.lender, lent.home]))


def _revert(settings: Mirage, view: MemoryView, lent: RangeView, memory: Memory) -> Decision:
    model = view.models[lent.lender]
    n_remapped = len(model.residency.loans) - 1
    targets = {
        n_slots: with_one_less(model.residency, lent.home, n_slots, settings.placement)
        for n_slots in _slot_choices(settings, n_remapped)
    }
    target = _fastest(model, settings.slots, settings.slot_threshold, targets)
    if target is None:
        return _keep(view, Reason.WAITING_TO_REVERT, memory)
    return _change(view, lent.lender, target, Reason.REVERT, memory)


def _reshape(settings: Mirage, view: MemoryView, memory: Memory, otherwise: Reason) -> Decision:
    """Give the model that runs one slot more or less if its steps become shorter by that (by 5 %, ours)."""
    lender, model = view.asker, view.models[view.asker]
    if settings.slots == "auto" and model.is_active and model.residency.loans:
        other = _with_other_slots(settings, model)
        if other is not None:
            return _change(view, lender, other, Reason.RESHAPE, memory)
    return _keep(view, otherwise, memory, settings.patience_steps)


def _with_other_slots(settings: Mirage, model: ModelView) -> Target | None:
    now = model.residency.wanted
    n_slots = 3 - now.n_slots
    if len(now.loans) + n_slots > model.residency.n_layers:
        return None
    other = reshaped(model.residency, n_slots, settings.placement)
    if {layer for layer, _ in model.residency.loading} & {*other.cycling}:
        return None
    is_faster = _predicted_step_ns(model, other) * 20 < _predicted_step_ns(model, now) * 19
    return other if is_faster else None


def _activate(settings: Mirage, view: MemoryView, memory: Memory) -> Decision:
    """Give up what the model may not lend now that it is active: ranges with the fewest blocks in use first."""
    model = view.models[view.asker]
    if settings.activation == "stream" or _within_active_bound(settings, model, model.residency.wanted):
        return _keep(view, Reason.NOTHING, memory)
    abroad = [lent for lent in view.ranges if lent.lender == view.asker != lent.borrower]
    kept, reclaimed = model.residency.wanted, set[tuple[int, int]]()
    for lent in sorted(abroad, key=lambda lent: (lent.n_referenced, lent.home)):
        loans = tuple(loan for loan in kept.loans if loan.home != lent.home)
        kept = _reshaped(settings, model, loans)
        reclaimed.add((lent.lender, lent.home))
        if _within_active_bound(settings, model, kept):
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
        preempt=tuple(holders) if settings.activation == "preempt_borrower" else (),
        migrate=settings.activation == "migrate",
    )


def _reshaped(settings: Mirage, model: ModelView, loans: tuple[Loan, ...]) -> Target:
    """These loans, with as many slots as are best for them."""
    targets = {
        n_slots: target_for(model.residency, loans, n_slots, settings.placement)
        for n_slots in _slot_choices(settings, len(loans))
    }
    target = _fastest(model, settings.slots, settings.slot_threshold, targets)
    assert target is not None
    return target


def _restore_idle(settings: Mirage, view: MemoryView, memory: Memory) -> Decision:
    """No model has work: the link is free, every empty range goes back."""
    idle = idle_ranges(view) if settings.reversion else ()
    if not idle:
        return _keep(view, Reason.NOTHING, memory)
    return _revert(settings, view, _first_to_go(settings, view, list(idle)), memory)


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
