"""The platforms of the VAMP paper, as policies see them: Qwen3-Next-80B-A3B in bf16."""

from __future__ import annotations

from policies.memory.experts import ExpertLayout, ExpertResidency
from policies.shortage import Preemptable, Shortage, Victim
from policies.types import GIB, MIB
from policies.vamp import Vamp

KV_TOKEN_BYTES = 12 * 1024  # 12 layers x K and V of one head of 256 dimensions in bf16, on either platform


def layout(tp: int) -> ExpertLayout:
    """512 experts of 2048 x 512 (gate, up, down) in 48 layers, divided among so many ranks."""
    return ExpertLayout(
        n_layers=48,
        n_experts=512,
        n_active=10,
        gate_up_bytes=2 * 2 * 2048 * 512 // tp,
        down_bytes=2 * 2048 * 512 // tp,
        page_bytes=2 * MIB,
    )


def residency(tp: int, percent: int, n_increments: int = 0) -> ExpertResidency:
    return ExpertResidency(layout(tp), Vamp(max_offloaded_fraction=percent / 100).cap, n_increments)


def shortage(
    n_blocks: int,
    *,
    block_tokens: int = 272,
    ages: tuple[int, ...] | None = None,
    n_steps_left: int | None = None,
    n_preemptable: int = 0,
    hit_rate: float = 0.5,
    n_partial_tokens: int = 0,
) -> Shortage:
    """A gap with as many cached blocks to evict, just released, unless their ages are given."""
    ages = (0,) * n_blocks if ages is None else ages
    return Shortage(
        n_blocks=n_blocks,
        block_tokens=block_tokens,
        block_bytes=block_tokens * KV_TOKEN_BYTES,
        victims=tuple(Victim(100 + nth, age) for nth, age in enumerate(ages)),
        preemptable=tuple(Preemptable(900 - nth, n_partial_tokens) for nth in range(n_preemptable)),
        n_steps_left=n_steps_left,
        hit_rate=hit_rate,
    )


def gib(n_bytes: int) -> float:
    return n_bytes / GIB
