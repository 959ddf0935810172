"""A mixture of experts as the equal layers that the loop, the ledger and MIRAGE know: each the mean of all."""

from __future__ import annotations

from policies.moe import MoeShape
from policies.types import Mixture, ModelShape


def even_layers(shape: MoeShape) -> ModelShape:
    """Take the layers of a mixture as alike, on one GPU: bytes, parameters and KV cache are means over the layers."""
    dtype, n_layers, n_moe = shape.dtype_bytes, shape.n_layers, shape.n_moe_layers
    expert_bytes = shape.gate_up_bytes + shape.down_bytes
    every_token = n_moe * (shape.router_params + shape.shared_params) + shape.n_dense_layers * shape.dense_params
    resident = shape.mixer_params + every_token + n_layers * shape.norm_params
    layers_bytes = dtype * resident + n_moe * shape.n_experts * expert_bytes
    return ModelShape(
        name=shape.name,
        n_layers=n_layers,
        hidden=shape.hidden,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_shards,
        head_dim=shape.head_dim,
        ffn=shape.expert_ffn,
        vocab=shape.vocab,
        gated_mlp=True,
        layer_bytes=layers_bytes // n_layers,
        total_bytes=layers_bytes + dtype * shape.other_params,
        max_context_tokens=shape.max_context_tokens,
        dtype_bytes=dtype,
        kv_token_bytes=shape.kv_bytes_per_token(1),
        mixture=Mixture(
            mixer_params=shape.mixer_params // n_layers,
            shared_params=every_token // n_layers,
            n_experts=shape.n_experts,
            n_active=shape.n_active,
            expert_params=shape.expert_params,
            expert_bytes=expert_bytes,
            expert_share=n_moe / n_layers,
        ),
    )
