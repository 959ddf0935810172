"""The reference: paged attention by gathering blocks, on any device and in any data type."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from executor.attention.prefill import attend_prefill, gather
from executor.models.rotary import Rotary, rotate
from executor.models.step import PADDING_SLOT, StepInput


class SdpaKernels:
    """Plain PyTorch: one sequence after the other. It reads contexts on the host, so it cannot be captured."""

    def store(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput, rotary: Rotary | None) -> Tensor:
        """See ``AttentionKernels``."""
        block_tokens, n_kv_heads, head_dim = kv.shape[3:]
        heads = qkv.unflatten(1, (-1, head_dim))
        query, key, value = heads.split((heads.shape[1] - 2 * n_kv_heads, n_kv_heads, n_kv_heads), dim=1)
        if rotary is not None:
            query, key = rotate(query, step.positions, rotary), rotate(key, step.positions, rotary)
        real = step.slots != PADDING_SLOT
        slots = step.slots[real]
        blocks, offsets = slots // block_tokens, slots % block_tokens
        kv[blocks, layer, 0, offsets] = key[real]
        kv[blocks, layer, 1, offsets] = value[real]
        return query

    def decode(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """See ``AttentionKernels``."""
        attended = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for row, context in enumerate(step.contexts.tolist()):
            if context:
                n_blocks = -(-context // kv.shape[3])
                key, value = gather(kv, layer, step.block_tables[row, :n_blocks].long(), context)
                attended[row] = _attend_one(query[row], key, value)
        return attended

    def prefill(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """See ``AttentionKernels``."""
        assert step.prefills is not None
        attended = torch.empty_like(query, memory_format=torch.contiguous_format)
        for prefill in step.prefills.sequences:
            n_blocks = -(-prefill.context // kv.shape[3])
            blocks = step.prefills.tables[prefill.table, :n_blocks].long()
            rows = slice(prefill.first_row, prefill.first_row + prefill.n_new)
            attended[rows] = attend_prefill(query[rows], *gather(kv, layer, blocks, prefill.context))
        return attended


def _attend_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend from one token, (n_heads, head_dim), to a context of (context, n_kv_heads, head_dim)."""
    attended = functional.scaled_dot_product_attention(
        query[None, :, None], key.transpose(0, 1)[None], value.transpose(0, 1)[None], enable_gqa=True
    )
    return attended[0, :, 0]
