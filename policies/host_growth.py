"""When KV cache in host memory grows and shrinks: common to the policies that keep some there.

It grows while blocks are short, and comes back into HBM as soon as there is room: the last unit's blocks move to
free ones of the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from policies.decision import Decision, Reason
from policies.memory.residency import HostKv, HostUse, Target
from policies.remap.host_kv import grown, last_units, shrunk
from policies.remap.when import Memory, can_spare
from policies.types import GIB
from policies.view import Ask, MemoryView, ModelView, RangeView

MayHold = Callable[[ModelView, HostKv], bool]
"""Whether a model may hold so much on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGrowth:
    """How KV cache on the host grows and shrinks, unit by unit. All ours.

    Attributes:
        unit_blocks: blocks of a unit.
        max_host_bytes: most that one model may hold there; the host also has the master copies of the weights.
        spare_margin: share of its blocks that a model keeps free when a unit goes.
        hysteresis_steps: steps for which there must have been room for it.
        patience_steps: steps without a new question after "no".
    """

    unit_blocks: int = 8
    max_host_bytes: int = 64 * GIB
    spare_margin: float = 0.1
    hysteresis_steps: int = 16
    patience_steps: int = 8

    def __post_init__(self) -> None:
        for name in ("unit_blocks", "max_host_bytes", "hysteresis_steps", "patience_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.spare_margin < 1:
            raise ValueError(f"spare_margin={self.spare_margin} is outside [0, 1)")

    def decide(self, view: MemoryView, use: HostUse, may_hold: MayHold, block_copy_ns: int = 0) -> Decision:
        """Grow when blocks are short, as far as ``may_hold`` allows; shrink when HBM has room.

        Args:
            block_copy_ns: what the copies of a block take each way beside its bytes.
        """
        memory = view.policy_memory if isinstance(view.policy_memory, Memory) else Memory()
        match view.ask:
            case Ask.RUNNING_SHORT | Ask.WAITING_SHORT:
                unit_bytes = self.unit_blocks * view.models[view.asker].block_bytes
                unit = HostKv(1, self.unit_blocks, unit_bytes, use, self.unit_blocks * block_copy_ns)
                return self._grow(view, unit, may_hold, memory.pressed())
            case Ask.EASE | Ask.IDLE:
                return self._shrink(view, may_hold, memory)
            case Ask.ACTIVATE | Ask.START | Ask.EVICTION:
                return keep(view, Reason.NOTHING, memory)

    def _grow(self, view: MemoryView, unit: HostKv, may_hold: MayHold, memory: Memory) -> Decision:
        model = view.models[view.asker]
        held = grown(model.residency.on_host, -(-view.n_short_blocks // self.unit_blocks), unit)
        if held.n_bytes > self.max_host_bytes:
            return keep(view, Reason.AT_CAP, memory, self.patience_steps)
        if not may_hold(model, held):
            return keep(view, Reason.WOULD_STALL, memory, self.patience_steps)
        target = replace(model.residency.wanted, on_host=held)
        return _change(view, view.asker, target, Reason.HOLD_ON_HOST, memory)

    def _shrink(self, view: MemoryView, may_hold: MayHold, memory: Memory) -> Decision:
        fitting = [unit for unit in last_units(view.ranges) if unit.n_referenced <= _n_free_in_hbm(view, unit)]
        urgent = [unit for unit in fitting if view.ask is Ask.IDLE or self._slows(view, unit, may_hold)]
        spare = urgent or [unit for unit in fitting if can_spare(view, unit, self.spare_margin)]
        if not spare:
            return keep(view, Reason.IN_USE, memory.pressed(), self.patience_steps)
        memory = memory.eased(view.step)
        assert memory.eased_since is not None
        waited = view.step - memory.eased_since
        if not urgent and waited < self.hysteresis_steps:
            return keep(view, Reason.WAITING_TO_REVERT, memory, self.hysteresis_steps - waited)
        lender = spare[0].lender
        return _change(view, lender, shrunk(view.models[lender]), Reason.LEAVE_HOST, memory)

    def _slows(self, view: MemoryView, unit: RangeView, may_hold: MayHold) -> bool:
        model = view.models[unit.lender]
        held = model.residency.on_host
        return model.is_active and held is not None and not may_hold(model, held)


def keep(view: MemoryView, reason: Reason, memory: object, quiet_steps: int = 1) -> Decision:
    """Leave everything as it is."""
    wanted = tuple(model.residency.wanted for model in view.models)
    return Decision(targets=wanted, reason=reason, quiet_steps=quiet_steps, policy_memory=memory)


def _change(view: MemoryView, index: int, target: Target, reason: Reason, memory: Memory) -> Decision:
    targets = [model.residency.wanted for model in view.models]
    targets[index] = target
    return Decision(targets=tuple(targets), reason=reason, policy_memory=memory, migrate=True)


def _n_free_in_hbm(view: MemoryView, unit: RangeView) -> int:
    """Free blocks of the unit's model that are its own: where what the unit holds could go."""
    ranges = [lent for lent in view.ranges if lent.borrower == unit.borrower]
    n_free_there = sum(lent.n_blocks - lent.n_referenced for lent in ranges)
    return view.models[unit.borrower].n_free_blocks - n_free_there
