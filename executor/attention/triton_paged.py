"""Attention over paged KV by Triton kernels, with no library beside PyTorch: the main path on a GPU."""

# pyright: reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# (a kernel declares its sizes as ``tl.constexpr`` and is launched with plain integers and ``num_warps``)
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from executor.attention.tiling import Tiling, tiling_for
from executor.attention.triton_decode import attend_to_splits, merge_splits
from executor.attention.triton_prefill import attend_to_prefixes
from executor.attention.triton_store import store_heads
from executor.models.rotary import Rotary
from executor.models.step import TILE_ROWS, StepInput

MIN_DOT_ROWS = 16
"""Fewest rows that Triton multiplies on the tensor cores."""

STORED_HEADS_PER_PROGRAM = 8
"""2 KiB of a row a program of four warps: one access of 4 bytes a thread for each half."""

PREFILL_TILE_TOKENS = 64
"""Tokens that a tile of prefill rows attends to an iteration. With 128 numbers of two bytes a head a program keeps Q,
and K and V of two iterations, in 80 KiB and no register is spilled: two share a multiprocessor of an H200 (227 KiB)."""


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """Paged attention by Triton; see ``AttentionKernels``. Everything can be captured.

    Args:
        tiling: ``None`` chooses it by the heads and the number of decodes.
    """

    tiling: Tiling | None = None

    def store(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput, rotary: Rotary | None) -> Tensor:
        """See ``AttentionKernels``."""
        block_tokens, n_kv_heads, head_dim = kv.shape[3:]
        heads = qkv.unflatten(1, (-1, head_dim))
        n_rows, n_all_heads = heads.shape[:2]
        store_heads[n_rows, triton.cdiv(n_all_heads, STORED_HEADS_PER_PROGRAM)](
            qkv,
            kv[:, layer],
            step.slots,
            step.positions,
            step.positions if rotary is None else rotary.cosine,
            step.positions if rotary is None else rotary.sine,
            N_HEADS=n_all_heads - 2 * n_kv_heads,
            N_KV_HEADS=n_kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_TOKENS=block_tokens,
            BLOCK_STRIDE=kv.stride(0),
            HEADS=STORED_HEADS_PER_PROGRAM,
            ROTARY=rotary is not None,
        )
        return heads[:, : n_all_heads - 2 * n_kv_heads]

    def decode(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """See ``AttentionKernels``.

        Raises:
            ValueError: ``head_dim`` is no power of two.
        """
        n_decodes, n_heads, head_dim = query.shape
        n_kv_heads = kv.shape[4]
        _check(head_dim)
        tiling = self.tiling or tiling_for(n_heads, n_kv_heads, n_decodes)
        n_splits = tiling.n_splits_at_most(n_decodes, n_kv_heads)
        attended = torch.empty(n_decodes, n_heads, head_dim, dtype=query.dtype, device=query.device)
        if n_splits == 1:
            _attend_to_splits(tiling, query, kv[:, layer], step, attended[:, :, None], attended, attended)
            return attended
        parts = torch.empty(n_decodes, n_heads, n_splits, head_dim, dtype=torch.float32, device=query.device)
        peak, total = torch.empty(2, n_decodes, n_heads, n_splits, dtype=torch.float32, device=query.device)
        _attend_to_splits(tiling, query, kv[:, layer], step, parts, peak, total)
        merge_splits[n_heads, n_decodes](
            parts,
            peak,
            total,
            attended,
            step.contexts,
            n_decodes,
            HEAD_DIM=head_dim,
            **_cut(tiling, n_decodes, n_kv_heads),
        )
        return attended

    def prefill(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """See ``AttentionKernels``.

        Raises:
            ValueError: ``head_dim`` is no power of two.
        """
        assert step.prefills is not None
        n_rows, n_heads, head_dim = query.shape
        block_tokens, n_kv_heads = kv.shape[3:5]
        _check(head_dim)
        attended = torch.empty(n_rows, n_heads, head_dim, dtype=query.dtype, device=query.device)
        tiles, tables = step.prefills.tiles, step.prefills.tables
        attend_to_prefixes[n_heads, tiles.shape[0]](
            query,
            kv[:, layer],
            tiles,
            tables,
            step.positions,
            attended,
            query.stride(0),
            tables.stride(0),
            math.log2(math.e) / math.sqrt(head_dim),
            N_HEADS=n_heads,
            N_KV_HEADS=n_kv_heads,
            HEAD_DIM=head_dim,
            BLOCK_TOKENS=block_tokens,
            BLOCK_STRIDE=kv.stride(0),
            ROWS=TILE_ROWS,
            TILE=PREFILL_TILE_TOKENS,
            N_STAGES=2,
        )
        return attended


def _check(head_dim: int) -> None:
    if head_dim & (head_dim - 1):
        raise ValueError(f"head_dim={head_dim} is no power of two: these kernels cannot be used")


def _attend_to_splits(
    tiling: Tiling, query: Tensor, kv: Tensor, step: StepInput, parts: Tensor, peak: Tensor, total: Tensor
) -> None:
    """Attend to each split of each context, in one layer.

    Args:
        kv: (n_blocks, 2, block_tokens, n_kv_heads, head_dim) of that layer.
        parts: (n_decodes, n_heads, n_splits, head_dim), written; float32 unless there is one split.
        peak, total: (n_decodes, n_heads, n_splits) float32, written unless there is one split.
    """
    n_decodes, n_heads, head_dim = query.shape
    block_tokens, n_kv_heads = kv.shape[2:4]
    group = n_heads // n_kv_heads
    attend_to_splits[n_kv_heads, parts.shape[2], n_decodes](
        query,
        kv,
        step.block_tables,
        step.contexts,
        parts,
        peak,
        total,
        query.stride(0),
        step.block_tables.stride(0),
        math.log2(math.e) / math.sqrt(head_dim),
        n_decodes,
        N_KV_HEADS=n_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        BLOCK_STRIDE=kv.stride(0),
        N_STAGES=tiling.n_stages,
        QUERY_ROWS=max(MIN_DOT_ROWS, triton.next_power_of_2(group)),
        num_warps=tiling.n_warps,
        **_cut(tiling, n_decodes, n_kv_heads),
    )


def _cut(tiling: Tiling, n_decodes: int, n_kv_heads: int) -> dict[str, int]:
    """What both kernels must know to agree on which split covers which tokens."""
    return {
        "SEQS": triton.next_power_of_2(n_decodes),
        "N_SPLITS": tiling.n_splits_at_most(n_decodes, n_kv_heads),
        "SPREAD": tiling.n_splits_at_most(n_decodes, n_kv_heads) // tiling.n_splits(n_decodes, n_kv_heads),
        "TILE": tiling.tile_tokens,
    }
