"""What a policy answers: a target state, and why. Read only; not frozen, and with a constructor that compiles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from policies.costs import Costs
from policies.memory.residency import Target


class Reason(Enum):
    """Why a decision is what it is; results count these."""

    NO_LENDING = "this policy does not lend"
    LEND_INACTIVE = "a layer of an inactive model is lent"
    LEND_ACTIVE = "a layer of the active model is lent"
    ONE_A_STEP = "the layers of this step are lent already"
    AT_CAP = "every model is at its cap"
    WOULD_STALL = "one more layer would make a decode step wait"
    LINK_FULL = "the running models together would overload the link"
    REVERT = "a lent range is empty and goes back"
    WAITING_TO_REVERT = "a lent range is empty, but not for long enough"
    IN_USE = "every lent range is in use"
    RESHAPE = "the same loans with other cycling layers or slots"
    RECLAIM = "the model whose turn it is takes its layers back"
    HOLD_ON_HOST = "more KV cache is held in host memory"
    LEAVE_HOST = "KV cache comes back from host memory"
    EVICT = "cached blocks are worth less than what would spare them"
    OFFLOAD = "experts are offloaded"
    OFFLOAD_AND_EVICT = "whole increments of experts are offloaded, and the rest of the blocks evicted"
    PREEMPT = "requests are preempted"
    NO_WAY = "neither experts, nor cached blocks, nor requests would do"
    RESTORE = "experts come back"
    NOTHING = "nothing to change"


@dataclass(slots=True, init=False, unsafe_hash=True)
class Decision:
    """A target state with its reason. Applying it twice changes nothing.

    Attributes:
        targets: the wanted residency of every model, in their order.
        reason: why.
        quiet_steps: steps for which this kind of question need not be asked again,
            unless blocks become free or the memory changes; at least 1.
        policy_memory: comes back in the next view.
        preempt: requests that must not go on running (they are recomputed later).
        migrate: blocks in ranges that this decision withdraws move to free blocks of the
            same model instead of keeping the range.
        increments: wanted increments of experts in the KV cache of every model, in their order; none: as they are.
        evict: blocks of the asker that are to lose their content.
        costs: what each option of the policy would have cost.
    """

    targets: tuple[Target, ...]
    reason: Reason
    quiet_steps: int
    policy_memory: object | None  # mypyc knows no bare ``object`` here
    preempt: tuple[int, ...]
    migrate: bool
    increments: tuple[int, ...]
    evict: tuple[int, ...]
    costs: Costs | None

    def __init__(
        self,
        *,
        targets: tuple[Target, ...],
        reason: Reason,
        quiet_steps: int = 1,
        policy_memory: object | None = None,
        preempt: tuple[int, ...] = (),
        migrate: bool = False,
        increments: tuple[int, ...] = (),
        evict: tuple[int, ...] = (),
        costs: Costs | None = None,
    ) -> None:
        self.targets = targets
        self.reason = reason
        self.quiet_steps = quiet_steps
        self.policy_memory = policy_memory
        self.preempt = preempt
        self.migrate = migrate
        self.increments = increments
        self.evict = evict
        self.costs = costs
        if quiet_steps < 1:
            raise ValueError(f"quiet_steps={quiet_steps} must be at least 1")
