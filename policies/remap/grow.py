"""The target of one model with one loan more, or with one less: placement made concrete."""

from __future__ import annotations

from typing import Literal

from policies.memory.residency import Loan, Residency, Target
from policies.remap.which_layers import (
    Placement,
    contiguous,
    evenly_spaced,
    first_and_last,
    nested_order,
)


def target_for(residency: Residency, loans: tuple[Loan, ...], n_slots: int, placement: Placement) -> Target:
    """Let these homes be lent and the right layers cycle through ``n_slots`` slots.

    ``nested``: the layers of the lent homes and of the slots cycle. Otherwise the
    placement alone says which layers cycle, wherever the lent homes are.
    """
    if not loans:
        return Target()
    if placement == "nested":
        order = nested_order(residency.n_layers)
        cycling = tuple(sorted({*order[:n_slots], *(loan.home for loan in loans)}))
    else:
        cycling = _spread(residency.n_layers, len(loans) + n_slots, placement)
    return Target(cycling=cycling, n_slots=n_slots, loans=loans)


def reshaped(residency: Residency, n_slots: int, placement: Placement) -> Target:
    """The same loans with so many slots; worked out once for a residency."""
    known = residency.reshaped.get((n_slots, placement))
    if known is None:
        known = target_for(residency, residency.wanted.loans, n_slots, placement)
        residency.reshaped[n_slots, placement] = known
    return known


def _spread(
    n_layers: int, n_cycling: int, placement: Literal["even", "first_and_last", "contiguous"]
) -> tuple[int, ...]:
    match placement:
        case "even":
            return evenly_spaced(n_layers, n_cycling)
        case "first_and_last":
            return first_and_last(n_layers, n_cycling)
        case "contiguous":
            return contiguous(n_layers, n_cycling)


def with_one_more(residency: Residency, borrower: int, n_slots: int, placement: Placement) -> Target | None:
    """Lend one home more, or ``None`` if none is free to lend now.

    ``nested`` lends the next home of its order. Otherwise the home of a layer that
    enters the cycle is lent; layers that leave it move into the homes of the others.
    """
    n_layers = residency.n_layers
    n_remapped = len(residency.loans) + 1
    if n_slots + n_remapped > n_layers:
        return None
    busy = {layer for layer, _ in residency.loading}
    if placement == "nested":
        order = nested_order(n_layers)
        at_home = [layer for layer in order[2:] if residency.homes[layer] == layer]
        if not at_home or busy & {*order[:n_slots]}:
            return None
        return target_for(residency, (*residency.loans, Loan(at_home[0], borrower)), n_slots, placement)
    cycling = _spread(n_layers, n_remapped + n_slots, placement)
    entering = [home for layer in cycling if (home := residency.homes[layer]) is not None]
    if not entering or busy & {*cycling}:
        return None
    return Target(cycling=cycling, n_slots=n_slots, loans=(*residency.loans, Loan(entering[-1], borrower)))


def with_one_less(residency: Residency, home: int, n_slots: int, placement: Placement) -> Target | None:
    """Take one lent home back, or ``None`` if a layer that would have to cycle is being loaded."""
    loans = tuple(loan for loan in residency.loans if loan.home != home)
    target = target_for(residency, loans, n_slots, placement)
    if {layer for layer, _ in residency.loading} & {*target.cycling}:
        return None
    return target
