"""From a description of a mixture-of-experts model as it is served to its lane and ledger, ready for an engine."""

from __future__ import annotations

from dataclasses import dataclass

from policies.lane import Lane
from policies.memory.experts import ExpertKv, ExpertLayout, ExpertResidency, OffloadCap
from policies.memory.layout import KvLayout
from policies.memory.ledger import Ledger, partition
from policies.moe import MoeShape
from policies.policy import OffloadsExperts, Policy
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.setup import Serving, v1_settings
from policies.types import HardwareProfile, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedMoe:
    """One mixture-of-experts model on tensor-parallel ranks, all alike: what is true of one is true of each.

    Attributes:
        share: of each rank's HBM, for weights, activations and KV cache.
        activation_bytes: of that, kept for activations.
    """

    shape: MoeShape
    n_ranks: int
    share: float
    activation_bytes: int


def open_moe(served: ServedMoe, hardware: HardwareProfile, serving: Serving, policy: Policy) -> tuple[Ledger, Lane]:
    """Divide the HBM of a rank, and give the model its scheduler and its blocks.

    A policy that offloads experts and is never asked has the memory of those within its cap serve as KV cache from
    the start, for good.

    Raises:
        ValueError: the model does not fit, or cannot be served so.
    """
    if serving.scheduler != "vllm_v1":
        raise ValueError(f"model {served.shape.name}: experts need serving.scheduler=vllm_v1")
    if policy.preemption != "recompute":
        raise ValueError("a policy that swaps needs serving.scheduler=vllm_v0: V1 does not swap")
    layout = served.shape.experts(served.n_ranks, hardware.page_bytes)
    shape = rank_shape(served.shape, served.n_ranks, layout)
    cap = policy.cap if isinstance(policy, OffloadsExperts) else None
    asks = cap is not None and policy.lends
    staging_bytes = ExpertResidency(layout, cap).buffer_bytes if cap is not None and asks else 0
    part = partition(
        shape,
        hardware,
        share=served.share,
        activation_bytes=served.activation_bytes,
        staging_bytes=staging_bytes,
    )
    experts = None if cap is None else ExpertResidency(layout, cap) if asks else all_away(layout, cap)
    ledger = Ledger(hardware.hbm_bytes // hardware.page_bytes, [part], [experts])
    kv_bytes = part.kv_pages * hardware.page_bytes + (experts.offloaded_bytes if experts else 0)
    return ledger, _lane(served, shape, serving, kv_bytes, asks=asks)


def all_away(layout: ExpertLayout, cap: OffloadCap) -> ExpertResidency:
    """As many experts offloaded as the cap allows."""
    return ExpertResidency(layout, cap, ExpertResidency(layout, cap).most_increments)


def rank_shape(shape: MoeShape, n_ranks: int, layout: ExpertLayout) -> ModelShape:
    """One rank as the loop's books see it: experts are the layers, all other weights the rest."""
    layer_bytes = layout.total_bytes // layout.n_layers
    return ModelShape(
        name=shape.name,
        n_layers=layout.n_layers,
        hidden=shape.hidden,
        n_heads=shape.n_heads,
        n_kv_heads=max(1, shape.n_kv_shards // n_ranks),
        head_dim=shape.head_dim,
        ffn=shape.expert_ffn,
        vocab=shape.vocab,
        gated_mlp=True,
        layer_bytes=layer_bytes,
        total_bytes=layout.total_bytes + shape.rest_bytes(n_ranks),
        max_context_tokens=shape.max_context_tokens,
        dtype_bytes=shape.dtype_bytes,
        kv_token_bytes=shape.kv_bytes_per_token(n_ranks),
    )


def _lane(served: ServedMoe, shape: ModelShape, serving: Serving, kv_bytes: int, *, asks: bool) -> Lane:
    block_tokens = served.shape.block_tokens(served.n_ranks)
    kv = ExpertKv(base_bytes=kv_bytes, block_bytes=shape.block_bytes(block_tokens))
    if kv.n_base_blocks < 2:
        raise ValueError(
            f"model {shape.name}: {kv_bytes} bytes of KV hold no block of {kv.block_bytes}; raise its share"
        )
    settings = v1_settings(shape, serving, block_tokens, n_state_groups=served.shape.n_state_groups, asks=asks)
    scheduler = VllmV1(settings, FreeQueuePool(kv.n_base_blocks, spares_cached=asks))
    n_base = kv.n_base_blocks
    layout = KvLayout(n_base_blocks=n_base, first_blocks=(0,), strides=(0,), blocks_per_home=(0,), first_host_block=0)
    return Lane(
        index=0,
        shape=shape,
        scheduler=scheduler,
        layout=layout,
        block_bytes=kv.block_bytes,
        asking=scheduler if asks else None,
        expert_kv=kv if asks else None,
    )
