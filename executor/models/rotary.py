"""Rotary position embedding, as Llama applies it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.models.spec import DecoderSpec, RotaryScaling


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosine and sine of every position: ``(max_context_tokens, head_dim / 2)``, float32, on the model's device."""

    cosine: Tensor
    sine: Tensor


def rotary_tables(spec: DecoderSpec, device: torch.device) -> Rotary:
    """Tabulate the angles, in float32 as transformers does."""
    half = torch.arange(0, spec.shape.head_dim, 2, dtype=torch.float32)
    frequencies = 1.0 / spec.rotary_theta ** (half / spec.shape.head_dim)
    if spec.rotary_scaling is not None:
        frequencies = _stretched(frequencies, spec.rotary_scaling)
    angles = torch.arange(spec.shape.max_context_tokens, dtype=torch.float32)[:, None] * frequencies
    return Rotary(angles.cos().to(device), angles.sin().to(device))


def rotate(heads: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """Turn each head by the angles of its position.

    Args:
        heads: (n_tokens, n_heads, head_dim); its first half is paired with its second.
        positions: (n_tokens,) int64.

    Returns:
        A new tensor of the same shape and data type.
    """
    cosine = rotary.cosine[positions].to(heads.dtype)[:, None]
    sine = rotary.sine[positions].to(heads.dtype)[:, None]
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _stretched(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend between.

    Source: transformers 5, modeling_rope_utils.py, ``_compute_llama3_parameters``.
    """
    turns = scaling.n_original_positions * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, blend.clamp(0.0, 1.0))
