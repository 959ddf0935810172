"""Which part of each tensor of a layer a rank holds (see ``policies/ranks.py``; experts: here)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from executor.models.layout import LayerLayout
from executor.models.spec import DecoderSpec, ExpertSpec, Family

OUTPUTS, INPUTS = 0, 1
"""Axes of a matrix, which is ``(outputs, inputs)``."""


@dataclass(frozen=True, slots=True)
class Split:
    """A tensor that is divided along an axis, each of its groups by itself.

    Attributes:
        groups: their sizes along the axis: Q, K and V of a fused projection, gate and up of a gated MLP.
        grain: of how many numbers along the axis none go to different ranks: a head. Where a group has fewer grains
            than there are ranks, several ranks hold the same.
    """

    axis: int
    groups: tuple[int, ...]
    grain: int = 1

    def part(self, whole: Tensor, rank: int, n_ranks: int) -> Tensor:
        """The part of one rank: a new tensor, its groups one behind the other."""
        return torch.cat([self._of(group, rank, n_ranks) for group in whole.split(self.groups, self.axis)], self.axis)

    def _of(self, group: Tensor, rank: int, n_ranks: int) -> Tensor:
        n_parts = min(n_ranks, group.shape[self.axis] // self.grain)
        return group.chunk(n_parts, self.axis)[rank * n_parts // n_ranks]


def splits_of(spec: DecoderSpec) -> Mapping[str, Split]:
    """How the tensors of a layer are divided; what is not named every rank has whole.

    Args:
        spec: the whole model; of a layer with experts all but these (see ``expert_splits``).
    """
    shape = spec.shape
    width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    heads = Split(OUTPUTS, (width, kv_width, kv_width), shape.head_dim)
    behind = {"out_weight": Split(INPUTS, (width,)), "down_weight": Split(INPUTS, (shape.ffn,))}
    match spec.family:
        case Family.OPT:
            up = Split(OUTPUTS, (shape.ffn,))
            return {"qkv_weight": heads, "qkv_bias": heads, "up_weight": up, "up_bias": up, **behind}
        case Family.LLAMA:
            return {"qkv_weight": heads, "gate_up_weight": Split(OUTPUTS, (shape.ffn, shape.ffn)), **behind}
        case Family.MOE:
            return {"qkv_weight": heads, "out_weight": behind["out_weight"]}


def expert_splits(experts: ExpertSpec) -> tuple[Split, Split]:
    """How every expert of a whole model is divided: gate above up, and down."""
    return Split(OUTPUTS, (experts.ffn, experts.ffn)), Split(INPUTS, (experts.ffn,))


def moe_of_rank(whole: DecoderSpec, n_ranks: int) -> DecoderSpec:
    """What one of ``n_ranks`` equal ranks holds of a mixture of experts: its heads, and its part of every expert.

    Where there are fewer KV heads than ranks, several ranks hold the same one. Router, norms, embeddings and head are
    with every rank.

    Raises:
        ValueError: heads, KV heads or an expert do not divide among so many.

    Source: vLLM without expert parallelism: QKVParallelLinear (model_executor/layers/linear.py), FusedMoE.
    """
    shape, experts = whole.shape, whole.experts
    assert experts is not None, "a mixture of experts"
    if n_ranks < 1:
        raise ValueError(f"n_ranks={n_ranks} must be at least 1")
    fewer, more = sorted((shape.n_kv_heads, n_ranks))
    for name, n, is_odd in (
        ("n_heads", shape.n_heads, shape.n_heads % n_ranks),
        ("n_kv_heads", shape.n_kv_heads, more % fewer),
        ("expert_ffn", experts.ffn, experts.ffn % n_ranks),
    ):
        if is_odd:
            raise ValueError(f"model {shape.name}: {name}={n} does not divide among {n_ranks} ranks")
    n_heads, n_kv_heads = shape.n_heads // n_ranks, max(1, shape.n_kv_heads // n_ranks)
    n_others = shape.n_heads - n_heads + shape.n_kv_heads - n_kv_heads  # in Q and out, in K and V
    left_out = 2 * n_others * shape.head_dim * shape.hidden * shape.dtype_bytes
    part = replace(
        shape,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        ffn=experts.ffn // n_ranks,
        layer_bytes=shape.layer_bytes - left_out,
        total_bytes=shape.total_bytes - shape.n_layers * left_out,
    )
    return replace(whole, shape=part, experts=replace(experts, ffn=experts.ffn // n_ranks))


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
