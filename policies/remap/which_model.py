"""Which model lends next: inactive ones first, the active one last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from policies.view import ModelView

VictimOrder = Literal["mru", "lru"]


def lenders(models: Sequence[ModelView], order: VictimOrder) -> tuple[int, ...]:
    """Order all models as lenders.

    Inactive models come first. Where they have priorities, the lowest lends first
    (Algorithm 1); without, the most recently active one (``mru``: under round-robin its
    next turn is farthest), or the least recently active (``lru``, the ablation of figure
    11). A model that has never run counts as the least recent. Ties: the lower index.

    Source: MIRAGE section 5.2, figure 7.
    """

    def rank(model: int) -> tuple[int, int, int]:
        view = models[model]
        recent = -1 if view.last_active_step is None else view.last_active_step
        return (view.priority or 0, -recent if order == "mru" else recent, model)

    inactive = [model for model, view in enumerate(models) if not view.is_active]
    active = [model for model, view in enumerate(models) if view.is_active]
    return (*sorted(inactive, key=rank), *sorted(active, key=rank))
