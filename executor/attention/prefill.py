"""Attention of several new tokens of one sequence to all of its tokens, the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from executor.models.step import Prefill


def attend_prefill(query: Tensor, kv: Tensor, layer: int, prefill: Prefill) -> Tensor:
    """Attend causally from the last ``n_new`` tokens of a sequence to its whole context.

    Args:
        query: (n_new, n_heads, head_dim).
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim), the new tokens stored.

    Returns:
        (n_new, n_heads, head_dim).
    """
    key, value = gather(kv, layer, prefill.blocks, prefill.context)
    attended = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=_causal(prefill, query.device),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended[0].transpose(0, 1)


def gather(kv: Tensor, layer: int, blocks: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Copy K and V of one sequence out of its blocks.

    Only the named blocks are read: the rest of the range need not be mapped.

    Returns:
        K and V, (context, n_kv_heads, head_dim) each.
    """
    n_layers, (n_kv_heads, head_dim) = kv.shape[1], kv.shape[4:]
    copied = kv.flatten(0, 1)[blocks * n_layers + layer]  # (n, 2, block_tokens, n_kv_heads, head_dim)
    key, value = copied.transpose(0, 1).reshape(2, -1, n_kv_heads, head_dim)[:, :context]
    return key, value


def _causal(prefill: Prefill, device: torch.device) -> Tensor:
    """The mask with which new token i sees the tokens before it and itself."""
    if device.type == "cuda":  # a description, from which the flash kernel is chosen; the CPU needs the mask itself
        return causal_lower_right(prefill.n_new, prefill.context)
    seen = torch.ones(prefill.n_new, prefill.context, dtype=torch.bool, device=device)
    return seen.tril(prefill.context - prefill.n_new)
