"""Models small enough for a CPU, with random weights, and sequences to run through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.attention.sdpa import SdpaKernels
from executor.models.decoder import Decoder, build_decoder
from executor.models.layout import new_region
from executor.models.random_weights import fill_layer, random_outer
from executor.models.spec import DecoderSpec, Family, spec_of
from executor.models.step import Row, compose
from policies.types import ModelShape

CPU = torch.device("cpu")
BLOCK_TOKENS = 16
N_BLOCKS = 24
MAX_BLOCKS = 6


def tiny_shape(family: Family, dtype: torch.dtype) -> ModelShape:
    is_llama = family is Family.LLAMA
    return ModelShape(
        name=f"tiny {family.value}",
        n_layers=3,
        hidden=64,
        n_heads=4,
        n_kv_heads=2 if is_llama else 4,
        head_dim=16,
        ffn=96,
        vocab=97,
        gated_mlp=is_llama,
        layer_bytes=40_000 * dtype.itemsize,
        total_bytes=200_000 * dtype.itemsize,
        max_context_tokens=MAX_BLOCKS * BLOCK_TOKENS,
        dtype_bytes=dtype.itemsize,
    )


@dataclass(frozen=True)
class Tiny:
    """A decoder with its layers' regions and a KV range that nothing has been written to (all NaN)."""

    spec: DecoderSpec
    decoder: Decoder
    regions: Sequence[Tensor]
    kv: Tensor

    def step(self, *rows: Row) -> tuple[Tensor, Tensor]:
        """Run one step: residual stream of all rows, logits of the sampled ones."""
        composed = compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=CPU)
        return self.decoder.run(self.regions, self.kv, composed)


def tiny_model(family: Family, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tiny:
    spec = spec_of(tiny_shape(family, dtype), dtype)
    decoder = build_decoder(spec, random_outer(spec, seed, CPU), SdpaKernels())
    regions = [new_region(decoder.layout.n_bytes, CPU) for _ in range(spec.shape.n_layers)]
    for layer, region in enumerate(regions):
        fill_layer(decoder.layout, region, seed, layer)
        for weights in decoder.layout.views(region).values():
            weights.mul_(8)  # far enough from 0 that attention is not an average
    return Tiny(spec, decoder, regions, unwritten_kv(spec))


def unwritten_kv(spec: DecoderSpec) -> Tensor:
    return torch.full(spec.kv_shape(N_BLOCKS, BLOCK_TOKENS), float("nan"), dtype=spec.dtype)
