"""How many layers may be lent: what a decode step costs when layers cycle.

Symbols of the paper: alpha layers lent, m = alpha + n_slots cycling, n layers, T_T one
layer's transfer (``fetch_ns``), T_c one layer's computation (``layer_ns``), and ours, t_x
the rest of a step: head, sampling, host (``rest_ns``). All times are integer nanoseconds.
"""

from __future__ import annotations

from typing import Literal

from policies.remap.which_layers import gaps

SlotRule = Literal["auto", "one", "two", "threshold"]


def one_slot_step_ns(n_layers: int, cycling: tuple[int, ...], layer_ns: int, fetch_ns: int, rest_ns: int) -> int:
    """Length of a steady decode step when all cycling layers share one slot (exact).

    The slot is empty from the end of one cycling layer until the next has been fetched,
    so each gap of k layers lasts max(k T_c, T_T + T_c); t_x falls into the last gap.

    Source: MIRAGE eq. 4 for equal gaps; the sum over gaps is ours.
    """
    if len(cycling) <= 1:
        return n_layers * layer_ns + rest_ns
    steps = [k * layer_ns for k in gaps(n_layers, cycling)]
    steps[-1] += rest_ns
    return sum(max(step, fetch_ns + layer_ns) for step in steps)


def step_ns(n_layers: int, cycling: tuple[int, ...], n_slots: int, layer_ns: int, fetch_ns: int, rest_ns: int) -> int:
    """Length of a steady decode step with any number of slots.

    Plays the slot recurrence for a few tokens: a fetch starts when the link is free and
    the slot's last reader is done, a layer when the one before it and its fetch are done.

    Source: MIRAGE section 5.4 (eq. 5 is two slots where n_slots divides the gaps).
    """
    if len(cycling) <= n_slots:
        return n_layers * layer_ns + rest_ns
    if n_slots == 1:
        return one_slot_step_ns(n_layers, cycling, layer_ns, fetch_ns, rest_ns)
    fetched = [0] * n_slots  # by slot, of which ``nth`` is the next
    nth = link_free = now = began = 0
    ahead: list[int] = []  # of the end of the token: when each fetch under way has arrived
    n_tokens = 2 * n_slots + 2  # the transient has died out: tests/policies/test_how_many.py
    for _ in range(n_tokens):
        began, done, before = now, 0, ahead
        for layer in cycling:
            now += (layer - done) * layer_ns
            arrived = fetched[nth]
            now = (now if now > arrived else arrived) + layer_ns
            link_free = (now if now > link_free else link_free) + fetch_ns
            fetched[nth] = link_free
            nth = nth + 1 if nth + 1 < n_slots else 0
            done = layer + 1
        now += (n_layers - done) * layer_ns + rest_ns
        ahead = [end - now for end in (*fetched[nth:], *fetched[:nth])]
        if ahead == before:  # so will the next token be
            break
    return now - began


def slots_to_use(rule: SlotRule, n_remapped: int, threshold: int, one_ns: int, two_ns: int) -> int:
    """Choose m = alpha + 1 or alpha + 2.

    ``auto`` takes one slot iff its step is no longer. The paper's "alpha >= 9" (section
    5.4) follows from this rule at n = 40 and T_T / T_c = 4000 / 427 only; as a fixed
    ``threshold`` it is an ablation, like always ``one`` and always ``two`` (figure 15).
    """
    match rule:
        case "auto":
            return 1 if one_ns <= two_ns else 2
        case "one":
            return 1
        case "two":
            return 2
        case "threshold":
            return 1 if n_remapped < threshold else 2


def fits_without_stall(step: int, n_layers: int, layer_ns: int, rest_ns: int) -> bool:
    """Whether the step is as short as without lending. Source: MIRAGE section 5.3, our exact form."""
    return step <= n_layers * layer_ns + rest_ns


def fits_the_papers_bound(n_remapped: int, fetch_ns: int, compute_ns: int) -> bool:
    """T_T alpha <= T_compute, which forgets the one or two layers that cycle beyond alpha. Source: MIRAGE 5.3."""
    return fetch_ns * n_remapped <= compute_ns


def hard_cap(n_layers: int, max_fraction: float) -> int:
    """Layers that may be lent at most. Source: MIRAGE 5.2 (a maximum threshold) and 7.6.2 (as a share)."""
    return int(n_layers * max_fraction)


def link_load(cycles: list[tuple[int, int, int]]) -> float:
    """Share of the link that running models ask for together; above 1 they would wait for it.

    Args:
        cycles: (n_cycling, fetch_ns, compute_ns) of each running model.

    Source: DESIGN section 4, ours: the sum over models of m T_T / T_compute.
    """
    return sum(n_cycling * fetch_ns / compute_ns for n_cycling, fetch_ns, compute_ns in cycles)
