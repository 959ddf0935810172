"""What a decoder computes beyond its sizes: family, data type, norms, positions, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from policies.moe import MoeShape
from policies.types import ModelShape

SumRanks = Callable[[Tensor], None]
"""Replaces a tensor by its sum over tensor-parallel ranks."""


class Family(Enum):
    """Which decoder layer a model is made of."""

    OPT = "opt"
    LLAMA = "llama"
    MOE = "mixture of experts"
    """Llama's attention half, perhaps with norms of Q and K; experts in place of the MLP: Qwen3-MoE and Mixtral."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How Llama 3.1 stretches the wavelengths of its rotary embedding.

    Source: transformers 5, modeling_rope_utils.py, rope type ``llama3``.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    n_original_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """The experts of every layer.

    Attributes:
        n_experts: of a layer; a token is routed to ``n_active`` of them.
        ffn: width of one.
        normalises: the weights of a token's experts add up to 1.

    Raises:
        ValueError: a token would be routed to more experts than there are.
    """

    n_experts: int
    n_active: int
    ffn: int
    normalises: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.n_active <= self.n_experts:
            raise ValueError(f"experts: n_active={self.n_active} is outside 1..{self.n_experts}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder of one family, in one data type.

    Args:
        shape: its sizes; ``dtype_bytes`` agrees with ``dtype``. With experts ``layer_bytes`` are all other weights of a
            layer, and ``total_bytes`` all other weights.
        norm_eps: added to the variance by LayerNorm and RMSNorm.
        rotary_theta: base of the rotary wavelengths; OPT has learned positions and ignores it.
        rotary_scaling: ``None`` for plain rotary embedding.
        tied_head: logits are taken with the token embedding.
        experts: of every layer, for a mixture of experts only.
        norms_heads: each head of Q and K is normalised before it is turned (Qwen3).

    Raises:
        ValueError: the shape does not fit the family or the data type.
    """

    shape: ModelShape
    family: Family
    dtype: torch.dtype
    norm_eps: float = 1e-5
    rotary_theta: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    tied_head: bool
    experts: ExpertSpec | None = None
    norms_heads: bool = False

    def __post_init__(self) -> None:
        shape = self.shape
        if shape.dtype_bytes != self.dtype.itemsize:
            raise ValueError(f"model {shape.name}: dtype_bytes={shape.dtype_bytes}, but {self.dtype} is wanted")
        if shape.n_heads % shape.n_kv_heads:
            raise ValueError(
                f"model {shape.name}: {shape.n_heads} heads do not divide among {shape.n_kv_heads} KV heads"
            )
        if self.family is Family.OPT and (shape.gated_mlp or shape.n_kv_heads != shape.n_heads):
            raise ValueError(f"model {shape.name}: OPT has a plain MLP and as many KV heads as heads")
        if self.family is Family.LLAMA and not shape.gated_mlp:
            raise ValueError(f"model {shape.name}: Llama has a gated MLP")
        if (self.family is Family.MOE) != (self.experts is not None):
            raise ValueError(f"model {shape.name}: experts={self.experts} do not go with {self.family.value}")

    @property
    def n_qkv_heads(self) -> int:
        """Rows of heads that the fused projection yields for a token: Q, then K, then V."""
        return self.shape.n_heads + 2 * self.shape.n_kv_heads

    def kv_shape(self, n_blocks: int, block_tokens: int) -> tuple[int, int, int, int, int, int]:
        """Shape of a KV range of ``n_blocks`` blocks, K and V on axis 2."""
        shape = self.shape
        return (n_blocks, shape.n_layers, 2, block_tokens, shape.n_kv_heads, shape.head_dim)


def spec_of(shape: ModelShape, dtype: torch.dtype) -> DecoderSpec:
    """Describe a model that is known by its sizes alone, for random weights.

    A gated MLP means Llama, a plain one OPT. The rotary base is Llama 2's: with random
    weights no other would mean more.
    """
    family = Family.LLAMA if shape.gated_mlp else Family.OPT
    return DecoderSpec(shape=shape, family=family, dtype=dtype, tied_head=family is Family.OPT)


def moe_spec_of(shape: MoeShape, dtype: torch.dtype) -> DecoderSpec:
    """Describe a mixture of experts that is known by its sizes alone, for random weights.

    Whether heads are normalised shows in how many weights an attention layer has.

    Raises:
        ValueError: it has parts that this decoder does not cover.
    """
    n_kv_heads, odd = divmod(shape.kv_bytes_per_layer, 2 * shape.head_dim * shape.dtype_bytes)
    projections = 2 * (shape.n_heads + n_kv_heads) * shape.head_dim * shape.hidden
    norms = shape.attention_params - projections
    if shape.delta_net or shape.n_dense_layers or shape.shared_params or odd or norms not in (0, 2 * shape.head_dim):
        raise ValueError(
            f"model {shape.name}: the executor serves plain attention and routed experts in every layer, no delta-net, "
            "dense layer, shared expert or latent attention; run it with python -m sim"
        )
    expert_bytes = 3 * shape.hidden * shape.expert_ffn * dtype.itemsize
    if shape.gate_up_bytes + shape.down_bytes != expert_bytes or shape.dtype_bytes != dtype.itemsize:
        raise ValueError(f"model {shape.name}: an expert in {dtype} has {expert_bytes} bytes, without biases or scales")
    layer_params = shape.attention_params + shape.norm_params + shape.router_params
    return DecoderSpec(
        shape=ModelShape(
            name=shape.name,
            n_layers=shape.n_layers,
            hidden=shape.hidden,
            n_heads=shape.n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=shape.head_dim,
            ffn=shape.expert_ffn,
            vocab=shape.vocab,
            gated_mlp=True,
            layer_bytes=layer_params * dtype.itemsize,
            total_bytes=shape.rest_bytes(1),
            max_context_tokens=shape.max_context_tokens,
            dtype_bytes=dtype.itemsize,
        ),
        family=Family.MOE,
        dtype=dtype,
        tied_head=False,
        experts=ExpertSpec(n_experts=shape.n_experts, n_active=shape.n_active, ffn=shape.expert_ffn),
        norms_heads=norms > 0,
    )
