"""Decode attention over paged KV in Triton: one kernel for a split of a context, and the merger of splits.

A program attends from one token of one sequence, for the query heads of one KV head, to one
split of its context; ``merge_splits`` then adds the splits up. How many splits there are, and
which tokens each covers, follows from the contexts of the step alone, no program waits for another and nothing
is added atomically, so the same step gives the same bits.

The ids of the next tile's blocks are read while this tile is computed: addresses then depend
on the iteration before, and Triton keeps several tiles in flight.
Softmax is taken in base 2 and float32 throughout.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
# (a kernel is Python in form alone: ``tl.range`` is no iterator and constants are tensors)
from __future__ import annotations

import triton
import triton.language as tl

FLOOR = tl.constexpr(-1.0e30)
"""Below any score, yet finite: the difference of two floors is 0, that of two infinities is not a number."""


@triton.jit(do_not_specialize=["n_decodes"])
def attend_to_splits(
    query_ptr,  # (n_decodes, n_heads, HEAD_DIM), rows query_stride apart
    kv_ptr,  # one layer: (n_blocks, 2, BLOCK_TOKENS, N_KV_HEADS, HEAD_DIM), blocks BLOCK_STRIDE apart
    tables_ptr,  # (n_decodes, table_stride) int32
    contexts_ptr,  # (n_decodes,) int32
    parts_ptr,  # (n_decodes, n_heads, N_SPLITS, HEAD_DIM), float32 unless N_SPLITS is 1
    peak_ptr,  # (n_decodes, n_heads, N_SPLITS) float32, likewise total_ptr
    total_ptr,
    query_stride,
    table_stride,
    scale,  # of scores, times log2(e)
    n_decodes,  # no constant: a step with prompts may have any number
    N_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    SEQS: tl.constexpr,  # n_decodes, up to a power of two
    N_SPLITS: tl.constexpr,
    SPREAD: tl.constexpr,
    TILE: tl.constexpr,  # tokens an iteration
    N_STAGES: tl.constexpr,  # tiles in flight, and one more
    QUERY_ROWS: tl.constexpr,  # GROUP, padded to what the tensor cores take
):
    """Attend to each split of each context; scores and sums are taken on the tensor cores."""
    head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts_ptr + seq)
    tokens_per_split = _split_tokens(context, contexts_ptr, n_decodes, SEQS, N_SPLITS, SPREAD, TILE)
    first, end = split * tokens_per_split, tl.minimum((split + 1) * tokens_per_split, context)
    if SPREAD > 1:  # noqa: SIM102 - known when compiled; the condition inside when run
        if (split > 0) & (first >= context):
            return  # nobody reads it
    rows, lanes, dims = tl.arange(0, QUERY_ROWS), tl.arange(0, TILE), tl.arange(0, HEAD_DIM)
    heads, real = head * GROUP + rows, rows < GROUP
    query_at = seq.to(tl.int64) * query_stride + heads[:, None] * HEAD_DIM + dims[None, :]
    query = tl.load(query_ptr + query_at, mask=real[:, None], other=0.0)

    peak = tl.full([QUERY_ROWS], FLOOR, tl.float32)
    total = tl.zeros([QUERY_ROWS], tl.float32)
    attended = tl.zeros([QUERY_ROWS, HEAD_DIM], tl.float32)
    table_ptr = tables_ptr + seq * table_stride
    block = tl.load(table_ptr + (first + lanes) // BLOCK_TOKENS, mask=first + lanes < end, other=0)
    for start in tl.range(first, end, TILE, num_stages=N_STAGES):
        tokens = start + lanes
        inside = tokens < end
        row = block.to(tl.int64) * BLOCK_STRIDE + (tokens % BLOCK_TOKENS) * (N_KV_HEADS * HEAD_DIM) + head * HEAD_DIM
        at = row[:, None] + dims[None, :]
        key = tl.load(kv_ptr + at, mask=inside[:, None], other=0.0)
        value = tl.load(kv_ptr + BLOCK_TOKENS * N_KV_HEADS * HEAD_DIM + at, mask=inside[:, None], other=0.0)
        block = tl.load(table_ptr + (tokens + TILE) // BLOCK_TOKENS, mask=tokens + TILE < end, other=0)
        scores = tl.dot(query, key.T, input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shrink, weights = tl.exp2(peak - higher), tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        attended = tl.dot(weights.to(value.dtype), value, attended * shrink[:, None], input_precision="ieee")
        peak = higher

    place = (seq * N_KV_HEADS * GROUP + heads) * N_SPLITS + split
    if N_SPLITS == 1:
        attended = attended / tl.where(total == 0.0, 1.0, total)[:, None]
    else:
        tl.store(peak_ptr + place, peak, mask=real)
        tl.store(total_ptr + place, total, mask=real)
    part_at = place.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(parts_ptr + part_at, attended.to(parts_ptr.dtype.element_ty), mask=real[:, None])


@triton.jit(do_not_specialize=["n_decodes"])
def merge_splits(
    parts_ptr,  # (n_decodes, n_heads, N_SPLITS, HEAD_DIM) float32
    peak_ptr,  # (n_decodes, n_heads, N_SPLITS) float32, likewise total_ptr
    total_ptr,
    out_ptr,  # (n_decodes, n_heads, HEAD_DIM)
    contexts_ptr,  # (n_decodes,) int32
    n_decodes,
    SEQS: tl.constexpr,
    N_SPLITS: tl.constexpr,
    SPREAD: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Add up the splits of one head of one sequence: those that were written."""
    seq = tl.program_id(1)
    head = (seq * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    splits, dims = tl.arange(0, N_SPLITS), tl.arange(0, HEAD_DIM)
    written = splits >= 0
    if SPREAD > 1:
        context = tl.load(contexts_ptr + seq)
        tokens_per_split = _split_tokens(context, contexts_ptr, n_decodes, SEQS, N_SPLITS, SPREAD, TILE)
        written = (splits == 0) | (splits * tokens_per_split < context)
    peak = tl.load(peak_ptr + head * N_SPLITS + splits, mask=written, other=FLOOR)
    weights = tl.exp2(peak - tl.max(peak, axis=0))
    total = tl.sum(tl.load(total_ptr + head * N_SPLITS + splits, mask=written, other=0.0) * weights, axis=0)
    at = (head * N_SPLITS + splits)[:, None] * HEAD_DIM + dims[None, :]
    parts = tl.load(parts_ptr + at, mask=written[:, None], other=0.0)
    attended = tl.sum(parts * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + head * HEAD_DIM + dims, attended.to(out_ptr.dtype.element_ty))


@triton.jit
def _split_tokens(
    context,
    contexts_ptr,
    n_decodes,
    SEQS: tl.constexpr,
    N_SPLITS: tl.constexpr,
    SPREAD: tl.constexpr,
    TILE: tl.constexpr,
):
    """Tokens of each split of one context: whole tiles, as many in each; the last splits may be empty.

    With a spread none is shorter than a split of the step's mean context, which is cut into N_SPLITS // SPREAD.
    """
    tiles = tl.cdiv(tl.cdiv(context, TILE), N_SPLITS)
    if SPREAD > 1:
        seqs = tl.arange(0, SEQS)
        contexts = tl.load(contexts_ptr + seqs, mask=seqs < n_decodes, other=0)
        n_seqs = tl.maximum(tl.sum((contexts > 0).to(tl.int32), axis=0), 1)
        mean = tl.cdiv(tl.sum(contexts, axis=0), n_seqs)
        tiles = tl.maximum(tiles, tl.cdiv(tl.cdiv(mean, TILE), N_SPLITS // SPREAD))
    return tiles * TILE
