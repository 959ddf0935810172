"""Which part of each tensor of a layer a rank holds (see ``policies/ranks.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.models.layout import LayerLayout
from executor.models.spec import DecoderSpec, Family

OUTPUTS, INPUTS = 0, 1
"""Axes of a matrix, which is ``(outputs, inputs)``."""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor that is divided along an axis, each of its groups by itself.

    Attributes:
        groups: their sizes along the axis: Q, K and V of a fused projection, gate and up of a gated MLP.
    """

    axis: int
    groups: tuple[int, ...]

    def part(self, whole: Tensor, rank: int, n_ranks: int) -> Tensor:
        """The part of one rank: a new tensor, its groups one behind the other."""
        groups = whole.split(self.groups, self.axis)
        return torch.cat([group.chunk(n_ranks, self.axis)[rank] for group in groups], self.axis)


def splits_of(spec: DecoderSpec) -> Mapping[str, Split]:
    """How the tensors of a layer are divided; what is not named every rank has whole.

    Args:
        spec: the whole model.

    Raises:
        ValueError: it has experts.
    """
    shape = spec.shape
    width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    heads = Split(OUTPUTS, (width, kv_width, kv_width))
    behind = {"out_weight": Split(INPUTS, (width,)), "down_weight": Split(INPUTS, (shape.ffn,))}
    match spec.family:
        case Family.OPT:
            up = Split(OUTPUTS, (shape.ffn,))
            return {"qkv_weight": heads, "qkv_bias": heads, "up_weight": up, "up_bias": up, **behind}
        case Family.LLAMA:
            return {"qkv_weight": heads, "gate_up_weight": Split(OUTPUTS, (shape.ffn, shape.ffn)), **behind}
        case Family.MOE:
            raise ValueError(f"model {shape.name}: the executor serves experts on one rank; run with python -m sim")


def take_part(
    whole: DecoderSpec, layouts: tuple[LayerLayout, LayerLayout], source: Tensor, to: Tensor, rank: int, n_ranks: int
) -> None:
    """Copy a rank's part of a layer.

    Args:
        whole: the whole model.
        layouts: of a whole layer, and of a rank's.
        source: a whole layer, uint8.
        to: the rank's region, uint8.
    """
    splits, parts = splits_of(whole), layouts[1].views(to)
    for name, tensor in layouts[0].views(source).items():
        parts[name].copy_(splits[name].part(tensor, rank, n_ranks) if name in splits else tensor)
