"""One decoder layer of OPT: LayerNorm before each half, biases everywhere, a plain ReLU MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from executor.attention.paged import PagedAttention
from executor.models.layout import LayerLayout
from executor.models.spec import DecoderSpec, SumRanks
from executor.models.step import StepInput


@dataclass(frozen=True, slots=True, kw_only=True)
class OptLayer:
    """Weights of one layer, as views of its region. A matrix is ``(outputs, inputs)``; Q, K and V are one."""

    qkv_weight: Tensor
    out_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor
    qkv_bias: Tensor
    out_bias: Tensor
    up_bias: Tensor
    down_bias: Tensor
    attention_norm_weight: Tensor
    attention_norm_bias: Tensor
    mlp_norm_weight: Tensor
    mlp_norm_bias: Tensor


def opt_layout(spec: DecoderSpec) -> LayerLayout:
    """Lay out one layer: matrices first, then vectors."""
    shape = spec.shape
    hidden, ffn, qkv = shape.hidden, shape.ffn, spec.n_qkv_heads * shape.head_dim
    shapes = {
        "qkv_weight": (qkv, hidden),
        "out_weight": (hidden, shape.n_heads * shape.head_dim),
        "up_weight": (ffn, hidden),
        "down_weight": (hidden, ffn),
        "qkv_bias": (qkv,),
        "out_bias": (hidden,),
        "up_bias": (ffn,),
        "down_bias": (hidden,),
        "attention_norm_weight": (hidden,),
        "attention_norm_bias": (hidden,),
        "mlp_norm_weight": (hidden,),
        "mlp_norm_bias": (hidden,),
    }
    return LayerLayout.packed(shapes, spec.dtype)


def run_opt_layer(
    weights: OptLayer,
    layer: int,
    hidden: Tensor,
    kv: Tensor,
    step: StepInput,
    attention: PagedAttention,
    eps: float,
    sum_ranks: SumRanks | None = None,
) -> None:
    """Add one layer to the residual stream, in place, and store its K and V.

    Args:
        hidden: (n_rows, hidden).
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim).
        sum_ranks: where the layer is divided among ranks.
    """
    size = (hidden.shape[1],)
    normed = functional.layer_norm(hidden, size, weights.attention_norm_weight, weights.attention_norm_bias, eps)
    qkv = functional.linear(normed, weights.qkv_weight, weights.qkv_bias)
    _add(hidden, attention.attend(qkv, kv, layer, step), weights.out_weight, weights.out_bias, sum_ranks)

    normed = functional.layer_norm(hidden, size, weights.mlp_norm_weight, weights.mlp_norm_bias, eps)
    up = torch.ops.aten._addmm_activation(weights.up_bias, normed, weights.up_weight.t())  # ReLU inside the GEMM
    _add(hidden, up, weights.down_weight, weights.down_bias, sum_ranks)


def _add(hidden: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor, sum_ranks: SumRanks | None) -> None:
    """Project onto the residual stream; the bias counts once, however many ranks there are."""
    if sum_ranks is None:
        hidden += functional.linear(inputs, weight, bias)
        return
    projected = functional.linear(inputs, weight)
    sum_ranks(projected)
    hidden += projected.add_(bias)
