"""From a description of what is served to lanes and ledger, ready for an engine."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from policies.lane import Lane
from policies.memory.layout import lay_out
from policies.memory.ledger import Ledger, Partition, partition
from policies.serving.blocks import BlockPool, SharedBytes
from policies.serving.scheduler import Preemption
from policies.serving.vllm_v0.scheduler import VllmV0
from policies.serving.vllm_v0.settings import V0Settings
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.serving.vllm_v1.scheduler import VllmV1
from policies.serving.vllm_v1.settings import V1Settings
from policies.types import GIB, HardwareProfile, ModelShape

V1_BATCHED_TOKENS = 8192
"""vLLM 0.15.1's default for an API server on a GPU of 70 GiB and more (engine/arg_utils.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of a mix.

    Attributes:
        share: of the HBM, for weights, activations and KV cache.
        activation_bytes: kept for activations.
        priority: a higher number runs first; ``None`` where the tenancy has no priorities.
    """

    shape: ModelShape
    share: float
    activation_bytes: int
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How models are served: vLLM's own settings, the same for every model.

    Attributes:
        scheduler: of vLLM 0.7.3 (``vllm_v0``) or 0.15.1 (``vllm_v1``).
        block_tokens: mixture-of-experts models have blocks as large as vLLM makes them for their states instead.
        max_num_batched_tokens: ``None``: the longest context, at least 2048, as vLLM 0.7.3 does; 8192 with V1.
        max_model_len: ``None``: the model's own context.
        async_output, watermark, swap_space_bytes, share_idle_kv, kv_order: of V0 only.
        swap_space_bytes: host memory for the swapped blocks of each model (vLLM: 4 GiB a GPU).
        share_idle_kv: KV blocks of all models come out of one budget (MIRAGE section 6, an ablation).
        kv_order: which free block is next. ``base_first`` (ours): a model's own before lent ones, so that lent ranges
            drain. ``first_fit``: the first of vLLM's one free list. With a prefix cache it is that list in any case.
        async_scheduling, long_prefill_tokens, reserve_full_isl: of V1 only, see ``V1Settings``.
    """

    scheduler: Literal["vllm_v0", "vllm_v1"] = "vllm_v0"
    block_tokens: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    chunked_prefill: bool = False
    async_output: bool = True
    prefix_caching: bool = False
    watermark: float = 0.01
    swap_space_bytes: int = 4 * GIB
    share_idle_kv: bool = False
    kv_order: Literal["base_first", "first_fit"] = "base_first"
    async_scheduling: bool = True
    long_prefill_tokens: int = 0
    reserve_full_isl: bool = False

    def __post_init__(self) -> None:
        for name in ("block_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"serving.{name}={getattr(self, name)} must be at least 1")
        for name in ("max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"serving.{name}={value} must be at least 1, or null")
        if self.long_prefill_tokens < 0:
            raise ValueError(f"serving.long_prefill_tokens={self.long_prefill_tokens} must not be negative")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"serving.watermark={self.watermark} is outside [0, 1)")
        if self.swap_space_bytes < 0:
            raise ValueError(f"serving.swap_space_bytes={self.swap_space_bytes} bytes must not be negative")
        if self.scheduler == "vllm_v1" and self.share_idle_kv:
            raise ValueError("serving.share_idle_kv=true needs serving.scheduler=vllm_v0")
        if self.scheduler == "vllm_v1" and self.kv_order == "first_fit":
            raise ValueError("serving.kv_order=first_fit needs serving.scheduler=vllm_v0")


def open_ledger(models: Seq[ServedModel], hardware: HardwareProfile) -> Ledger:
    """Divide the HBM among the models.

    Raises:
        ValueError: a model does not fit its share, or the shares do not fit the device.
    """
    parts = [
        partition(model.shape, hardware, share=model.share, activation_bytes=model.activation_bytes) for model in models
    ]
    return Ledger(hardware.hbm_bytes // hardware.page_bytes, parts)


def open_lanes(
    models: Seq[ServedModel],
    ledger: Ledger,
    hardware: HardwareProfile,
    serving: Serving,
    *,
    preemption: Preemption,
    lends_across: bool = True,
) -> list[Lane]:
    """Give every model its scheduler, its block pool and its KV address range.

    Args:
        lends_across: models may lend to each other, not only to themselves.

    Raises:
        ValueError: a model's KV pages hold not even one block.
    """
    budget = _shared_budget(ledger, hardware) if serving.share_idle_kv else None
    return [
        _lane(index, models, part, hardware, serving, preemption, budget, lends_across)
        for index, part in enumerate(ledger.partitions)
    ]


def _lane(
    index: int,
    models: Seq[ServedModel],
    part: Partition,
    hardware: HardwareProfile,
    serving: Serving,
    preemption: Preemption,
    budget: SharedBytes | None,
    lends_across: bool,
) -> Lane:
    shape = models[index].shape
    block_bytes = shape.block_bytes(serving.block_tokens)
    kv_bytes = part.kv_pages * hardware.page_bytes if budget is None else budget.n_bytes
    n_base_blocks = kv_bytes // block_bytes
    if n_base_blocks < 1:
        raise ValueError(f"model {shape.name}: {kv_bytes} bytes of KV hold no block of {block_bytes}; raise its share")
    match serving.scheduler:
        case "vllm_v0":
            settings = _v0_settings(shape, serving, preemption, block_bytes)
            pool = BlockPool(
                n_base_blocks,
                caching=serving.prefix_caching,
                base_first=serving.kv_order == "base_first",
                block_bytes=block_bytes,
                budget=budget,
            )
            scheduler = VllmV0(settings, pool)
        case "vllm_v1":
            if preemption == "swap":
                raise ValueError("a policy that swaps needs serving.scheduler=vllm_v0: V1 does not swap")
            scheduler = VllmV1(v1_settings(shape, serving, serving.block_tokens), FreeQueuePool(n_base_blocks))
    return Lane(
        index=index,
        shape=shape,
        scheduler=scheduler,
        layout=lay_out(
            shape,
            [model.shape for model in models],
            hardware,
            block_tokens=serving.block_tokens,
            n_base_blocks=n_base_blocks,
            lenders=None if lends_across else (index,),
        ),
        block_bytes=block_bytes,
        priority=models[index].priority,
        budget=budget,
    )


def _v0_settings(shape: ModelShape, serving: Serving, preemption: Preemption, block_bytes: int) -> V0Settings:
    max_model_len = serving.max_model_len or shape.max_context_tokens
    return V0Settings(
        block_tokens=serving.block_tokens,
        max_num_seqs=serving.max_num_seqs,
        max_num_batched_tokens=serving.max_num_batched_tokens or max(max_model_len, 2048),
        max_model_len=max_model_len,
        chunked_prefill=serving.chunked_prefill,
        preemption=preemption,
        prefix_caching=serving.prefix_caching,
        async_output=serving.async_output,
        watermark=serving.watermark,
        n_cpu_blocks=serving.swap_space_bytes // block_bytes,
    )


def v1_settings(
    shape: ModelShape, serving: Serving, block_tokens: int, *, n_state_groups: int = 0, asks: bool = False
) -> V1Settings:
    """Settings of V1's scheduler for a model; ``asks``: before it evicts cached blocks."""
    return V1Settings(
        max_num_batched_tokens=serving.max_num_batched_tokens or V1_BATCHED_TOKENS,
        max_model_len=serving.max_model_len or shape.max_context_tokens,
        block_tokens=block_tokens,
        max_num_seqs=serving.max_num_seqs,
        chunked_prefill=serving.chunked_prefill,
        prefix_caching=serving.prefix_caching,
        async_scheduling=serving.async_scheduling,
        long_prefill_tokens=serving.long_prefill_tokens,
        n_state_groups=n_state_groups,
        reserve_full_isl=serving.reserve_full_isl,
        asks_before_evicting=asks,
    )


def _shared_budget(ledger: Ledger, hardware: HardwareProfile) -> SharedBytes:
    return SharedBytes(sum(part.kv_pages for part in ledger.partitions) * hardware.page_bytes)
