"""Random weights of true shape, the same for the same seed, made where they will lie."""

from __future__ import annotations

import torch
from torch import Tensor

from executor.models.decoder import OPT_POSITION_OFFSET, OuterWeights
from executor.models.layout import LayerLayout
from executor.models.spec import DecoderSpec, Family

STANDARD_DEVIATION = 0.02
"""Of every weight, as before training. Source: ``initializer_range`` of transformers' LlamaConfig."""


def fill_layer(layout: LayerLayout, region: Tensor, seed: int, layer: int) -> None:
    """Fill a region with the random weights of one layer.

    Each layer has its own stream, so layers can be made in any order. Values are drawn on
    the region's device: a GPU and a CPU draw different ones.

    Args:
        region: (>= n_bytes,) uint8.
    """
    stream = _stream(seed, layer, region.device)
    for name, tensor in layout.views(region).items():
        _fill(tensor, stream, is_scale=name.endswith("norm_weight"))


def fill_expert(spec: DecoderSpec, gate_up: Tensor, down: Tensor, seed: int, layer: int, expert: int) -> None:
    """Fill the random weights of one expert, which has a stream of its own: they are the same in any pack.

    Args:
        gate_up: (2 * ffn, hidden).
        down: (hidden, ffn).
    """
    assert spec.experts is not None
    part = spec.shape.n_layers + 1 + layer * spec.experts.n_experts + expert  # behind the layers, and what is outside
    stream = _stream(seed, part, gate_up.device)
    _fill(gate_up, stream, is_scale=False)
    _fill(down, stream, is_scale=False)


def random_outer(spec: DecoderSpec, seed: int, device: torch.device) -> OuterWeights:
    """Make random embeddings, last norm and head on a device."""
    shape, stream = spec.shape, _stream(seed, spec.shape.n_layers, device)

    def new(*size: int, is_scale: bool = False) -> Tensor:
        return _fill(torch.empty(size, dtype=spec.dtype, device=device), stream, is_scale=is_scale)

    is_opt = spec.family is Family.OPT
    token_embedding = new(shape.vocab, shape.hidden)
    return OuterWeights(
        token_embedding=token_embedding,
        position_embedding=new(shape.max_context_tokens + OPT_POSITION_OFFSET, shape.hidden) if is_opt else None,
        norm_weight=new(shape.hidden, is_scale=True),
        norm_bias=new(shape.hidden) if is_opt else None,
        head=token_embedding if spec.tied_head else new(shape.vocab, shape.hidden),
    )


def _fill(tensor: Tensor, stream: torch.Generator, *, is_scale: bool) -> Tensor:
    """Draw in place around 0, or around 1 for the scale of a norm."""
    return tensor.normal_(float(is_scale), STANDARD_DEVIATION, generator=stream)


def _stream(seed: int, part: int, device: torch.device) -> torch.Generator:
    """The random stream of one part of a model: a layer, or everything outside."""
    digits = 2**20  # more than any model has layers and experts
    return torch.Generator(device).manual_seed(seed * digits + part)
