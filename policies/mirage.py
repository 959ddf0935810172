"""MIRAGE: lend layers of models to the KV cache while it is short, and take them back.

The four questions of the paper composed: *when* (``remap/when.py``), *which model*
(``remap/which_model.py``), *how many* layers (``remap/how_many.py``) and *which layers*
(``remap/which_layers.py``). Settings marked "ours" have no counterpart in the paper.

Source: MIRAGE (arXiv 2507.11507) sections 5 and 6, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from policies.decision import Decision
from policies.remap.decide import decide
from policies.remap.how_many import SlotRule
from policies.remap.which_layers import Placement
from policies.remap.which_model import VictimOrder
from policies.serving.scheduler import Preemption
from policies.view import MemoryView


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
        return decide(self, view)
