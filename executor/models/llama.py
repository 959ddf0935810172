"""One decoder layer of Llama: RMSNorm before each half, no biases, a gated SiLU MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from executor.attention.paged import PagedAttention
from executor.models.layout import LayerLayout
from executor.models.residual import add_projected
from executor.models.spec import DecoderSpec, SumRanks
from executor.models.step import StepInput


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """Weights of one layer, as views of its region. Q, K and V are one matrix, so are gate and up."""

    qkv_weight: Tensor
    out_weight: Tensor
    gate_up_weight: Tensor
    down_weight: Tensor
    attention_norm_weight: Tensor
    mlp_norm_weight: Tensor


def llama_layout(spec: DecoderSpec) -> LayerLayout:
    """Lay out one layer: matrices first, then vectors."""
    shape = spec.shape
    hidden, ffn, width = shape.hidden, shape.ffn, shape.n_heads * shape.head_dim
    shapes = {
        "qkv_weight": (spec.n_qkv_heads * shape.head_dim, hidden),
        "out_weight": (hidden, width),
        "gate_up_weight": (2 * ffn, hidden),
        "down_weight": (hidden, ffn),
        "attention_norm_weight": (hidden,),
        "mlp_norm_weight": (hidden,),
    }
    return LayerLayout.packed(shapes, spec.dtype)


def run_llama_layer(
    weights: LlamaLayer,
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
    normed = functional.rms_norm(hidden, size, weights.attention_norm_weight, eps)
    attended = attention.attend(functional.linear(normed, weights.qkv_weight), kv, layer, step)
    add_projected(hidden, attended, weights.out_weight, sum_ranks)

    normed = functional.rms_norm(hidden, size, weights.mlp_norm_weight, eps)
    gate, up = functional.linear(normed, weights.gate_up_weight).chunk(2, dim=1)
    add_projected(hidden, functional.silu(gate) * up, weights.down_weight, sum_ranks)
