"""A fixed share of each model's layers serves as its KV cache from start-up on.

Source: MIRAGE section 3.4 (what a static remapping costs when there is no pressure).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.decision import Decision, Reason
from policies.host_growth import keep
from policies.memory.residency import Loan, Target
from policies.remap.grow import target_for
from policies.remap.how_many import hard_cap, slots_to_use, step_ns
from policies.remap.which_layers import Placement, nested_order
from policies.serving.scheduler import Preemption
from policies.view import Ask, MemoryView, ModelView


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedShare:
    """Every model lends ``share`` of its layers to itself before the first request, and they never come back.

    Its limit is that it knows no load: the transfers are paid in every step, wanted or not. A share of 0 is the
    static partition, vLLM as it is (``recompute``).

    Attributes:
        share: of the layers, 0 to 1; the paper shows 10 to 50 %.
        placement: which layers cycle.
    """

    lends: ClassVar[bool] = True

    share: float = 0.3
    placement: Placement = "even"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"policy.fixed_share.share={self.share} is outside [0, 1]")

    @property
    def needs_requests(self) -> bool:
        """Never."""
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
        """Lend at the start, then leave everything as it is."""
        if view.ask is not Ask.START:
            return keep(view, Reason.AT_CAP, None, quiet_steps=2**30)
        targets = tuple(self._target(model, index) for index, model in enumerate(view.models))
        return Decision(targets=targets, reason=Reason.LEND_ACTIVE)

    def _target(self, model: ModelView, index: int) -> Target:
        n_layers = model.residency.n_layers
        n_lent = min(hard_cap(n_layers, self.share), n_layers - 2)  # two layers stay as slots
        if n_lent < 1 or not model.blocks_per_home[index]:
            return Target()
        choices = {n_slots: self._lending(model, index, n_lent, n_slots) for n_slots in (1, 2)}
        layer_ns = model.weights_ns // n_layers
        one_ns, two_ns = (
            step_ns(n_layers, target.cycling, n_slots, layer_ns, model.fetch_ns, model.rest_ns)
            for n_slots, target in choices.items()
        )
        return choices[slots_to_use("auto", n_lent, 0, one_ns, two_ns)]

    def _lending(self, model: ModelView, index: int, n_lent: int, n_slots: int) -> Target:
        """Lend homes of layers that cycle: of the last ones, so that the first ones' homes become the slots."""
        residency = model.residency
        if self.placement == "nested":
            homes = nested_order(residency.n_layers)[2 : 2 + n_lent]
        else:
            some = tuple(Loan(home, index) for home in range(n_lent))  # as many: which layers cycle is all it decides
            homes = target_for(residency, some, n_slots, self.placement).cycling[n_slots:]
        return target_for(residency, tuple(Loan(home, index) for home in homes), n_slots, self.placement)
