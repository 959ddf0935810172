"""Attention over paged KV by Triton kernels, with no library beside PyTorch: the main path on a GPU."""

# pyright: reportArgumentType=false, reportIndexIssue=false
# (a kernel declares its sizes as ``tl.constexpr`` and is launched with plain integers)
from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from executor.attention.triton_decode import attend_by_blocks, attend_by_dot, attend_by_lanes, merge_splits
from executor.attention.triton_store import store_heads
from executor.models.rotary import Rotary
from executor.models.step import StepInput

MIN_DOT_ROWS = 16
"""Fewest rows that Triton multiplies on the tensor cores."""

STORED_HEADS_PER_PROGRAM = 8
"""2 KiB of a row a program of four warps: one access of 4 bytes a thread for each half."""

MAX_SPLITS = 32


class Kernel(Enum):
    """How one split of a context is attended to."""

    DOT = "dot"
    LANES = "lanes"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the decode kernel cuts its work. Bench: ``python -m bench.attention``.

    Args:
        kernel: ``DOT`` takes any number of query heads of a KV head, the others one.
        tile_tokens: tokens an iteration; ``BLOCKS`` takes one block.
        heads: KV heads a program; ``DOT`` takes one.
        n_stages: iterations in flight, and one more.
        n_programs: as many programs as this at least, by splitting contexts (a power of two,
            up to ``MAX_SPLITS``).
    """

    kernel: Kernel
    tile_tokens: int = 16
    heads: int = 1
    n_warps: int
    n_stages: int
    n_programs: int = 1056  # eight for each of an H200's 132 multiprocessors

    def n_splits(self, n_decodes: int, n_kv_heads: int) -> int:
        """Choose how many splits a context has, from sizes that a captured graph fixes."""
        wanted = -(-self.n_programs // (n_decodes * n_kv_heads // self.heads))
        return min(MAX_SPLITS, triton.next_power_of_2(wanted))


def tiling_for(group: int) -> Tiling:
    """Choose the tiling for ``group`` query heads of each KV head."""
    if group == 1:
        return Tiling(kernel=Kernel.LANES, tile_tokens=32, n_warps=4, n_stages=3)
    return Tiling(kernel=Kernel.DOT, tile_tokens=64, n_warps=4, n_stages=3)


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """Paged attention by Triton; see ``AttentionKernels``. Everything can be captured.

    Args:
        tiling: ``None`` chooses it by the number of query heads of a KV head.
    """

    tiling: Tiling | None = None

    def plan(self, step: StepInput) -> None:
        """Nothing to prepare."""

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
        """See ``AttentionKernels``."""
        n_decodes, n_heads, head_dim = query.shape
        tiling = self.tiling or tiling_for(n_heads // kv.shape[4])
        n_splits = tiling.n_splits(n_decodes, kv.shape[4])
        attended = torch.empty(n_decodes, n_heads, head_dim, dtype=query.dtype, device=query.device)
        if n_splits == 1:
            _attend_splits(tiling, 1, query, kv[:, layer], step, attended, attended, attended)
            return attended
        parts = torch.empty(n_decodes, n_heads, n_splits, head_dim, dtype=torch.float32, device=query.device)
        peak, total = torch.empty(2, n_decodes, n_heads, n_splits, dtype=torch.float32, device=query.device)
        _attend_splits(tiling, n_splits, query, kv[:, layer], step, parts, peak, total)
        merge_splits[n_decodes * n_heads,](parts, peak, total, attended, N_SPLITS=n_splits, HEAD_DIM=head_dim)
        return attended


def _attend_splits(
    tiling: Tiling,
    n_splits: int,
    query: Tensor,
    kv: Tensor,
    step: StepInput,
    parts: Tensor,
    peak: Tensor,
    total: Tensor,
) -> None:
    """Attend to each split of each context, in one layer.

    Args:
        kv: (n_blocks, 2, block_tokens, n_kv_heads, head_dim) of that layer.
        parts: (n_decodes, n_heads, n_splits, head_dim), written; float32 unless there is one split.
        peak, total: (n_decodes, n_heads, n_splits) float32, written unless there is one split.
    """
    n_decodes, n_heads, head_dim = query.shape
    block_tokens, n_kv_heads = kv.shape[2:4]
    scale = math.log2(math.e) / math.sqrt(head_dim)
    rest = (step.block_tables, step.contexts, parts, peak, total, query.stride(0), step.block_tables.stride(0), scale)
    sizes = {"N_KV_HEADS": n_kv_heads, "HEAD_DIM": head_dim, "BLOCK_TOKENS": block_tokens, "N_SPLITS": n_splits}
    tuning = {"N_STAGES": tiling.n_stages, "num_warps": tiling.n_warps}
    grid = (n_kv_heads // tiling.heads, n_splits, n_decodes)
    match tiling.kernel:
        case Kernel.DOT:
            group = n_heads // n_kv_heads
            rows = max(MIN_DOT_ROWS, triton.next_power_of_2(group))
            sizes |= {"GROUP": group, "QUERY_ROWS": rows, "TILE": tiling.tile_tokens, "BLOCK_STRIDE": kv.stride(0)}
            attend_by_dot[grid](query, kv, *rest, **sizes, **tuning)
        case Kernel.LANES:
            sizes |= {"HEADS": tiling.heads, "TILE": tiling.tile_tokens, "BLOCK_STRIDE": kv.stride(0)}
            attend_by_lanes[grid](query, kv, *rest, **sizes, **tuning)
        case Kernel.BLOCKS:
            blocks = TensorDescriptor(
                kv,
                shape=[kv.shape[0], 2 * block_tokens, n_kv_heads, head_dim],
                strides=[kv.stride(0), n_kv_heads * head_dim, head_dim, 1],
                block_shape=[1, block_tokens, tiling.heads, head_dim],
            )
            attend_by_blocks[grid](query, blocks, *rest, HEADS=tiling.heads, **sizes, **tuning)
