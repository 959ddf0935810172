"""One decoder layer with experts, in two pieces: attention and router, and the experts, which may lie anywhere.

Qwen3-MoE and Mixtral: RMSNorm before each half, no biases, and in Qwen3 a norm of every head of Q and K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from executor.attention.paged import PagedAttention
from executor.models.layout import LayerLayout
from executor.models.residual import add_projected
from executor.models.spec import DecoderSpec, SumRanks
from executor.models.step import StepInput

if TYPE_CHECKING:  # it speaks of what is routed
    from executor.experts.kernels import ExpertKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeLayer:
    """Weights of one layer but for its experts, as views of its region. Q, K and V are one matrix.

    Attributes:
        query_norm_weight, key_norm_weight: (head_dim,), ``None`` where heads are not normalised.
    """

    qkv_weight: Tensor
    out_weight: Tensor
    router_weight: Tensor
    attention_norm_weight: Tensor
    mlp_norm_weight: Tensor
    query_norm_weight: Tensor | None = None
    key_norm_weight: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What a layer's experts are to compute. An assignment is a row and one of its experts: ``row * n_active + nth``.

    Attributes:
        normed: (n_rows, hidden), what they read.
        weights: (n_rows, n_active), of each assignment.
        order: (n_rows * n_active,) int64, assignments by expert; of one expert, in their own order.
        starts: (n_experts + 1,) int64, where in ``order`` those of each expert begin, and the end.
    """

    normed: Tensor
    weights: Tensor
    order: Tensor
    starts: Tensor


def moe_layout(spec: DecoderSpec) -> LayerLayout:
    """Lay out one layer without its experts: matrices first, then vectors."""
    shape, experts = spec.shape, spec.experts
    assert experts is not None, "the spec has seen to it"
    hidden, width = shape.hidden, shape.n_heads * shape.head_dim
    shapes = {
        "qkv_weight": (spec.n_qkv_heads * shape.head_dim, hidden),
        "out_weight": (hidden, width),
        "router_weight": (experts.n_experts, hidden),
        "attention_norm_weight": (hidden,),
        "mlp_norm_weight": (hidden,),
    }
    if spec.norms_heads:
        shapes |= {"query_norm_weight": (shape.head_dim,), "key_norm_weight": (shape.head_dim,)}
    return LayerLayout.packed(shapes, spec.dtype)


def attend_and_route(
    weights: MoeLayer,
    layer: int,
    hidden: Tensor,
    kv: Tensor,
    step: StepInput,
    attention: PagedAttention,
    kernels: ExpertKernels,
    spec: DecoderSpec,
    sum_ranks: SumRanks | None = None,
) -> Routed:
    """Add the attention half of a layer to the residual stream, in place, and choose the experts of every row.

    Args:
        hidden: (n_rows, hidden).
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim).
        sum_ranks: where attention is divided among ranks; each chooses the experts by itself, of the same sum.
    """
    size, eps = (hidden.shape[1],), spec.norm_eps
    normed = functional.rms_norm(hidden, size, weights.attention_norm_weight, eps)
    qkv = functional.linear(normed, weights.qkv_weight)
    if weights.query_norm_weight is not None and weights.key_norm_weight is not None:
        kernels.norm_heads(qkv, weights.query_norm_weight, weights.key_norm_weight, spec)
    add_projected(hidden, attention.attend(qkv, kv, layer, step), weights.out_weight, sum_ranks)
    normed = functional.rms_norm(hidden, size, weights.mlp_norm_weight, eps)
    assert spec.experts is not None
    return kernels.route(normed, functional.linear(normed, weights.router_weight), spec.experts)
