"""What it costs to make room for KV cache: evict cached blocks, offload experts, preempt, or the first two together.

The costs are scores to choose by, in microseconds as the paper gives its coefficients; what an action
really takes, the machine says.

Source: VAMP (arXiv 2609.13537) sections IV-B and V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum


class Option(Enum):
    """What can be done about a shortage, in the order in which ties are decided."""

    EVICT = "evict cached blocks"
    OFFLOAD = "offload experts"
    BOTH = "offload whole increments of experts and evict the rest"
    PREEMPT = "preempt requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What the costs are made of; the defaults are the paper's.

    Attributes:
        reuse_discount: share of hits that a cached block just released is credited with (alpha).
        reuse_decay_steps: scheduler steps after which that share has halved (tau).
        prefill_token_us: computing one token again (t_prefill).
        evict_us: handling of one evicted block (t_overhead); the paper gives no value.
        reload_us: fetching the experts of one token (c_reload).
        least_steps, most_steps: bounds of the decode steps that an offload is charged for (w).
        preempt_us: handling of one preemption (t_sched).
        queue_us: time that a preempted request waits, until it has been measured (t_queue).

    Raises:
        ValueError: a value is negative, or the bounds of the steps are not in order.
    """

    reuse_discount: float = 0.5
    reuse_decay_steps: float = 2000.0
    prefill_token_us: float = 15.0
    evict_us: float = 0.0
    reload_us: float = 630.0
    least_steps: int = 1
    most_steps: int = 64
    preempt_us: float = 500.0
    queue_us: float = 1000.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"coefficients: {field.name}={getattr(self, field.name)} must not be negative")
        if not self.reuse_decay_steps:
            raise ValueError("coefficients: reuse_decay_steps=0 must be positive")
        if not 1 <= self.least_steps <= self.most_steps:
            raise ValueError(
                f"coefficients: least_steps={self.least_steps} and most_steps={self.most_steps} must be in order, >= 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The price of each option in microseconds, ``None`` where it cannot be done."""

    evict_us: float | None = None
    offload_us: float | None = None
    both_us: float | None = None
    preempt_us: float | None = None

    @property
    def cheapest(self) -> Option | None:
        """The option to take; at equal costs the first of ``Option``. ``None``: nothing can be done."""
        prices = {
            Option.EVICT: self.evict_us,
            Option.OFFLOAD: self.offload_us,
            Option.BOTH: self.both_us,
            Option.PREEMPT: self.preempt_us,
        }
        feasible = [(price, nth, option) for nth, (option, price) in enumerate(prices.items()) if price is not None]
        return min(feasible)[2] if feasible else None


def reuse_probability(age_steps: int, hit_rate: float, by: Coefficients) -> float:
    """Estimate whether a cached block will be hit again (p_eff).

    Args:
        age_steps: scheduler steps since it was last used.
        hit_rate: share of looked-up tokens that were found lately, 0..1.
    """
    return by.reuse_discount * hit_rate / (1 + age_steps / by.reuse_decay_steps)


def eviction_us(reuses: Sequence[float], block_tokens: int, by: Coefficients) -> float:
    """Price the loss of cached blocks (C_c): each may have to be computed again.

    Args:
        reuses: for each block the probability that it would have been hit.
    """
    block_us = block_tokens * by.prefill_token_us + by.evict_us
    return sum(reuses) * block_us


def offload_us(n_shards: int, n_experts: int, n_active: int, n_steps: int, by: Coefficients) -> float:
    """Price more offloaded experts (C_e): for some steps, tokens are routed to experts that are not there.

    Args:
        n_shards: expert shards to offload, of all layers together.
        n_experts: experts of a layer; no more can be missed in one.
        n_active: experts that a token is routed to.
        n_steps: decode steps to charge for (w), see ``steps_to_charge``.
    """
    shard_us = by.reload_us * n_active / n_experts
    return min(n_shards, n_experts) * shard_us * n_steps


def preemption_us(n_blocks: int, n_partial_tokens: int, queue_us: float, by: Coefficients) -> float:
    """Price preemptions that free ``n_blocks`` blocks (C_p), one each: full ones stay cached.

    Args:
        n_partial_tokens: tokens in the last block of the first victim, which are lost.
        queue_us: time that a preempted request waits (t_queue).
    """
    return (by.preempt_us + queue_us + n_partial_tokens * by.prefill_token_us) * n_blocks


def steps_to_charge(n_steps_left: int | None, by: Coefficients) -> int:
    """Decode steps that an offload is charged for (w).

    Args:
        n_steps_left: the least that any running request may still produce, ``None`` if none runs.
    """
    if n_steps_left is None:
        return by.most_steps
    return min(max(n_steps_left, by.least_steps), by.most_steps)
