"""What a decoder computes beyond its sizes: family, data type, norms, positions, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from policies.types import ModelShape

SumRanks = Callable[[Tensor], None]
"""Replaces a tensor by its sum over tensor-parallel ranks."""


class Family(Enum):
    """Which decoder layer a model is made of."""

    OPT = "opt"
    LLAMA = "llama"


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
class DecoderSpec:
    """A decoder of one family, in one data type.

    Args:
        shape: its sizes; ``dtype_bytes`` agrees with ``dtype``.
        norm_eps: added to the variance by LayerNorm and RMSNorm.
        rotary_theta: base of the rotary wavelengths; OPT has learned positions and ignores it.
        rotary_scaling: ``None`` for plain rotary embedding.
        tied_head: logits are taken with the token embedding.

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
