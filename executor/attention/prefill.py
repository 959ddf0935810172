"""Attention of several new tokens of one sequence to all of its tokens by plain PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend_prefill(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally from the last ``n_new`` tokens of a sequence to its whole context.

    Args:
        query: (n_new, n_heads, head_dim).
        key, value: (context, n_kv_heads, head_dim), the new tokens last.

    Returns:
        (n_new, n_heads, head_dim).
    """
    n_new, context = query.shape[0], key.shape[0]
    seen = torch.ones(n_new, context, dtype=torch.bool, device=query.device).tril(context - n_new)
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=seen,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended[0].transpose(0, 1)


def gather(kv: Tensor, layer: int, blocks: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Copy K and V of one sequence out of its blocks.

    Only the named blocks are read: the rest of the range need not be mapped.

    Args:
        blocks: (n_blocks,) int64, as many as the context takes.

    Returns:
        K and V, (context, n_kv_heads, head_dim) each.
    """
    n_layers, (n_kv_heads, head_dim) = kv.shape[1], kv.shape[4:]
    copied = kv.flatten(0, 1)[blocks * n_layers + layer]  # (n, 2, block_tokens, n_kv_heads, head_dim)
    key, value = copied.transpose(0, 1).reshape(2, -1, n_kv_heads, head_dim)[:, :context]
    return key, value
