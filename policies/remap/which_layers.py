"""Which layers cycle: as far apart as the decode cycle allows, or otherwise (ablations)."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Literal

Placement = Literal["nested", "even", "first_and_last", "contiguous"]


@cache
def evenly_spaced(n_layers: int, n_cycling: int) -> tuple[int, ...]:
    """Choose ``n_cycling`` of ``n_layers`` as far apart as the decode cycle allows.

    The last layer of one token is followed by the first of the next, so the gap
    that wraps around counts like the others.

    Args:
        n_layers: layers in the model, >= 1.
        n_cycling: layers to choose, 0..n_layers.

    Returns:
        Increasing layer indices from 0; any two gaps differ by at most one.

    Raises:
        ValueError: ``n_cycling`` is outside 0..n_layers.

    Source: MIRAGE section 5.4, eq. 3.
    """
    if not 0 <= n_cycling <= n_layers:
        raise ValueError(f"n_cycling={n_cycling} is outside 0..{n_layers}")
    return tuple(i * n_layers // n_cycling for i in range(n_cycling))


def first_and_last(n_layers: int, n_cycling: int) -> tuple[int, ...]:
    """Choose layers from both ends in turn: the alternative that MIRAGE's figure 7 argues against."""
    ends = [i // 2 if i % 2 == 0 else n_layers - 1 - i // 2 for i in range(n_cycling)]
    return tuple(sorted(ends))


def contiguous(n_layers: int, n_cycling: int) -> tuple[int, ...]:
    """Choose the first layers (an ablation: the worst spacing)."""
    if n_cycling > n_layers:
        raise ValueError(f"n_cycling={n_cycling} is outside 0..{n_layers}")
    return tuple(range(n_cycling))


@cache
def nested_order(n_layers: int) -> tuple[int, ...]:
    """Order all layers so that growing the cycle never moves a layer out of it.

    The homes of the first two, o0 and o1, are the slots; o2, o3, ... are lent in this
    order. o0, o2, o3, ... halve the largest gap in turn (ties: the lowest), so the gaps
    of what cycles through one slot differ by at most a factor of about two. o1, which
    joins with the second slot, is a layer that the halving reaches last, near a quarter
    of the way: there it splits a gap whatever the number of layers lent.

    Ours, not the paper's: even spacing for m and m + 1 share few layers (DESIGN section 4).

    Args:
        n_layers: layers in the model, >= 3.
    """
    if n_layers < 3:
        raise ValueError(f"n_layers={n_layers}: lending needs a model of at least 3 layers (two slots and one home)")
    halving = [0]
    while len(halving) < n_layers:
        cuts = sorted([*halving, n_layers])
        gap, start = max((after - before, -before) for before, after in pairwise(cuts))
        halving.append(-start + gap // 2)
    second = min(halving[n_layers // 2 :], key=lambda layer: (abs(layer - n_layers // 4), layer))
    halving.remove(second)
    return (0, second, *halving[1:])


def gaps(n_layers: int, cycling: tuple[int, ...]) -> tuple[int, ...]:
    """Layers from each cycling layer to the next, the last gap wrapping into the next token."""
    following = (*cycling[1:], cycling[0] + n_layers) if cycling else ()
    return tuple(after - before for before, after in zip(cycling, following, strict=True))
