"""The small work of a layer with experts in Triton: norms of heads, routing, sorting by expert, adding up.

Each in one launch, where plain PyTorch needs several: at decode batches a layer is then mostly its products.
"""

# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
# (a kernel is Python in form alone: constants are tensors)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_heads(
    qkv_ptr,  # (n_rows, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM), Q and K changed in place
    query_norm_ptr,  # (HEAD_DIM,), likewise key_norm_ptr
    key_norm_ptr,
    eps,
    N_HEADS: tl.constexpr,
    N_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,  # as a power of two
    HEADS: tl.constexpr,  # heads a program
):
    """Normalise a few heads of one row; rounded between division and scale, as transformers does."""
    row, dim = tl.program_id(0).to(tl.int64), tl.arange(0, DIMS)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < N_HEADS
    real = (head < N_HEADS + N_KV_HEADS)[:, None] & (dim < HEAD_DIM)[None, :]
    at = row * ((N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM) + head[:, None] * HEAD_DIM + dim[None, :]
    values = tl.load(qkv_ptr + at, mask=real, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / HEAD_DIM + eps)
    normed = (wide * scale[:, None]).to(values.dtype)
    query_norm = tl.load(query_norm_ptr + dim, mask=dim < HEAD_DIM, other=0.0)
    key_norm = tl.load(key_norm_ptr + dim, mask=dim < HEAD_DIM, other=0.0)
    weight = tl.where(is_query[:, None], query_norm[None, :], key_norm[None, :])
    tl.store(qkv_ptr + at, normed * weight, mask=real)


@triton.jit
def choose_experts(
    logits_ptr,  # (n_rows, N_EXPERTS)
    ids_ptr,  # (n_rows, N_ACTIVE) int32
    weights_ptr,  # (n_rows, N_ACTIVE)
    N_EXPERTS: tl.constexpr,
    EXPERTS: tl.constexpr,  # as a power of two
    N_ACTIVE: tl.constexpr,
    ACTIVE: tl.constexpr,  # as a power of two
    NORMALISES: tl.constexpr,
):
    """Choose the likeliest experts of a row; of equals the first."""
    row, expert, nth = tl.program_id(0).to(tl.int64), tl.arange(0, EXPERTS), tl.arange(0, ACTIVE)
    logits = tl.load(logits_ptr + row * N_EXPERTS + expert, mask=expert < N_EXPERTS, other=float("-inf"))
    logits = logits.to(tl.float32)
    odds = tl.exp(logits - tl.max(logits, axis=0))
    left = tl.where(expert < N_EXPERTS, odds / tl.sum(odds, axis=0), -1.0)
    ids = tl.zeros([ACTIVE], tl.int32)
    weights = tl.zeros([ACTIVE], tl.float32)
    for each in tl.static_range(N_ACTIVE):
        best = tl.argmax(left, axis=0, tie_break_left=True)
        ids = tl.where(nth == each, best, ids)
        weights = tl.where(nth == each, tl.max(left, axis=0), weights)
        left = tl.where(expert == best, -1.0, left)
    if NORMALISES:
        weights = weights / tl.sum(weights, axis=0)
    real = nth < N_ACTIVE
    tl.store(ids_ptr + row * N_ACTIVE + nth, ids, mask=real)
    tl.store(weights_ptr + row * N_ACTIVE + nth, weights.to(weights_ptr.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["n_assignments"])  # one kernel for every number of rows
def sort_by_expert(
    ids_ptr,  # (n_assignments,) int32
    order_ptr,  # (n_assignments,) int64
    starts_ptr,  # (n_experts + 1,) int64
    n_assignments,
    CHUNK: tl.constexpr,
):
    """Write where the assignments of one expert begin, and which they are, in their own order."""
    expert, nth = tl.program_id(0), tl.arange(0, CHUNK)
    n_before = tl.zeros([CHUNK], tl.int32)
    for first in range(0, n_assignments, CHUNK):
        ids = tl.load(ids_ptr + first + nth, mask=first + nth < n_assignments, other=2**30)
        n_before += (ids < expert).to(tl.int32)
    place = tl.sum(n_before, axis=0)
    tl.store(starts_ptr + expert, place.to(tl.int64))
    if expert == tl.num_programs(0) - 1:
        tl.store(starts_ptr + expert + 1, n_assignments.to(tl.int64))
    for first in range(0, n_assignments, CHUNK):
        ids = tl.load(ids_ptr + first + nth, mask=first + nth < n_assignments, other=2**30)
        is_mine = ids == expert
        ranks = tl.cumsum(is_mine.to(tl.int32), axis=0)
        tl.store(order_ptr + place + ranks - 1, (first + nth).to(tl.int64), mask=is_mine)
        place += tl.sum(is_mine.to(tl.int32), axis=0)


@triton.jit
def add_up(
    hidden_ptr,  # (n_rows, WIDTH), added to
    said_ptr,  # (n_rows, N_ACTIVE, WIDTH)
    N_ACTIVE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add what the experts of one row say, one after the other and in float32, to some columns of the stream."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = column < WIDTH
    total = tl.zeros([COLUMNS], tl.float32)
    for nth in tl.static_range(N_ACTIVE):
        total += tl.load(said_ptr + (row * N_ACTIVE + nth) * WIDTH + column, mask=real, other=0.0).to(tl.float32)
    before = tl.load(hidden_ptr + row * WIDTH + column, mask=real, other=0.0)
    rounded = total.to(before.dtype)
    tl.store(hidden_ptr + row * WIDTH + column, before + rounded, mask=real)
