"""What one of several tensor-parallel ranks holds of a dense model, as Megatron-LM divides it.

Every rank has its heads with their K and V and its part of the MLP: the projections before are divided by
outputs, those behind by inputs, so that two sums over the ranks a layer suffice. Norms, what is added behind a
sum, embeddings and head are with every rank.

Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 3.
"""

from __future__ import annotations

from dataclasses import replace

from policies.types import ModelShape

COPIED_OPT, COPIED_LLAMA = 6, 2
"""Vectors of ``hidden`` numbers in a layer that every rank has. OPT: scale and shift of two norms, the biases of the
output projection and of the second matrix of the MLP. Llama: the scales of two norms."""


def of_rank(shape: ModelShape, n_ranks: int) -> ModelShape:
    """Return the shape of what one of ``n_ranks`` equal ranks holds; ``hidden`` stays.

    Raises:
        ValueError: heads, KV heads or the MLP do not divide among so many.
    """
    if n_ranks < 1:
        raise ValueError(f"n_ranks={n_ranks} must be at least 1")
    for name in ("n_heads", "n_kv_heads", "ffn"):
        if getattr(shape, name) % n_ranks:
            raise ValueError(f"model {shape.name}: {name}={getattr(shape, name)} does not divide among {n_ranks} ranks")
    n_copied = COPIED_LLAMA if shape.gated_mlp else COPIED_OPT
    copied_bytes = n_copied * shape.hidden * shape.dtype_bytes
    layer_bytes = (shape.layer_bytes - copied_bytes) // n_ranks + copied_bytes
    return replace(
        shape,
        n_heads=shape.n_heads // n_ranks,
        n_kv_heads=shape.n_kv_heads // n_ranks,
        ffn=shape.ffn // n_ranks,
        layer_bytes=layer_bytes,
        total_bytes=shape.n_layers * layer_bytes + shape.other_bytes,
    )
