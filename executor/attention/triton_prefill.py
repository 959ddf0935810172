"""Prefill attention over paged KV in Triton: every prompt and piece of a prompt of a step in one launch.

A program attends from one tile of rows of one sequence, for one query head, to all that they
see: tokens that were in the cache before, and new ones, whose K and V are stored already. Which
tile it is, it reads on the device, so a captured launch serves any sequences that fit its
grid. Each row is summed up in one order by one program: the same step gives the same bits.

As in decoding, the ids of the next blocks are read while this tile is computed, and softmax
is taken in base 2 and float32.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
# (a kernel is Python in form alone: ``tl.range`` is no iterator and constants are tensors)
from __future__ import annotations

import triton
import triton.language as tl

from executor.attention.triton_decode import FLOOR


@triton.jit
def attend_to_prefixes(
    query_ptr,  # (n_rows, N_HEADS, HEAD_DIM), rows query_stride apart
    kv_ptr,  # one layer: (n_blocks, 2, BLOCK_TOKENS, N_KV_HEADS, HEAD_DIM), blocks BLOCK_STRIDE apart
    tiles_ptr,  # (n_tiles, 3) int32: first row, number of rows, block table
    tables_ptr,  # (n_tables, table_stride) int32
    positions_ptr,  # (n_rows,) int64
    out_ptr,  # (n_rows, N_HEADS, HEAD_DIM)
    query_stride,
    table_stride,
    scale,  # of scores, times log2(e)
    N_HEADS: tl.constexpr,
    N_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile, at most
    TILE: tl.constexpr,  # tokens an iteration
    N_STAGES: tl.constexpr,  # tiles in flight, and one more
):
    """Attend from one tile of rows; heads that share K and V are neighbours in the grid, and find them in L2."""
    head, tile_ptr = tl.program_id(0), tiles_ptr + tl.program_id(1) * 3
    first_row, n_rows, table = tl.load(tile_ptr), tl.load(tile_ptr + 1), tl.load(tile_ptr + 2)
    if n_rows == 0:
        return
    first = tl.load(positions_ptr + first_row).to(tl.int32)
    rows, lanes, dims = tl.arange(0, ROWS), tl.arange(0, TILE), tl.arange(0, HEAD_DIM)
    real, seen_by = rows < n_rows, first + rows
    row_at = (first_row + rows).to(tl.int64)[:, None]
    query = tl.load(query_ptr + row_at * query_stride + head * HEAD_DIM + dims[None, :], mask=real[:, None], other=0.0)

    peak = tl.full([ROWS], FLOOR, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    end = first + n_rows
    kv_head = head // (N_HEADS // N_KV_HEADS)
    table_ptr = tables_ptr + table.to(tl.int64) * table_stride
    block = tl.load(table_ptr + lanes // BLOCK_TOKENS, mask=lanes < end, other=0)
    for start in tl.range(0, end, TILE, num_stages=N_STAGES):
        tokens = start + lanes
        inside = tokens < end
        token_at = block.to(tl.int64) * BLOCK_STRIDE + (tokens % BLOCK_TOKENS) * (N_KV_HEADS * HEAD_DIM)
        at = (token_at + kv_head * HEAD_DIM)[:, None] + dims[None, :]
        key = tl.load(kv_ptr + at, mask=inside[:, None], other=0.0)
        value = tl.load(kv_ptr + BLOCK_TOKENS * N_KV_HEADS * HEAD_DIM + at, mask=inside[:, None], other=0.0)
        block = tl.load(table_ptr + (tokens + TILE) // BLOCK_TOKENS, mask=tokens + TILE < end, other=0)
        scores = tl.dot(query, key.T, input_precision="ieee") * scale
        seen = tokens[None, :] <= seen_by[:, None]
        scores = tl.where(seen & inside[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shrink, weights = tl.exp2(peak - higher), tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        attended = tl.dot(weights.to(value.dtype), value, attended * shrink[:, None], input_precision="ieee")
        peak = higher

    out_at = (row_at * N_HEADS + head) * HEAD_DIM + dims[None, :]
    tl.store(out_ptr + out_at, (attended / total[:, None]).to(out_ptr.dtype.element_ty), mask=real[:, None])
