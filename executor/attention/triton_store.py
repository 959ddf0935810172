"""Store K and V of new tokens into paged KV, turned by their positions, in one pass over the projection's output."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_heads(
    qkv_ptr,  # (n_rows, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM); Q is turned in place
    kv_ptr,  # one layer: (n_blocks, 2, BLOCK_TOKENS, N_KV_HEADS, HEAD_DIM), blocks BLOCK_STRIDE apart
    slots_ptr,  # (n_rows,) int64, -1 for padding
    positions_ptr,  # (n_rows,) int64
    cosine_ptr,  # (n_positions, HEAD_DIM / 2) float32, likewise sine_ptr; not read unless ROTARY
    sine_ptr,
    N_HEADS: tl.constexpr,
    N_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,  # heads a program
    ROTARY: tl.constexpr,
):
    """One row and a few of its heads, of Q, K or V, a program. Without rotation Q stays as it is."""
    row, slot = tl.program_id(0).to(tl.int64), tl.load(slots_ptr + tl.program_id(0))
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    half = tl.arange(0, HEAD_DIM // 2)
    is_query, is_value = head < N_HEADS, head >= N_HEADS + N_KV_HEADS
    real = head < tl.where(slot >= 0, N_HEADS + 2 * N_KV_HEADS, 0)  # none of a padding row
    if not ROTARY:
        real = real & (head >= N_HEADS)

    source = row * ((N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM) + head[:, None] * HEAD_DIM + half[None, :]
    first = tl.load(qkv_ptr + source, mask=real[:, None], other=0.0)
    second = tl.load(qkv_ptr + source + HEAD_DIM // 2, mask=real[:, None], other=0.0)
    if ROTARY:
        angle = tl.load(positions_ptr + row) * (HEAD_DIM // 2) + half
        cosine, sine = tl.load(cosine_ptr + angle)[None, :], tl.load(sine_ptr + angle)[None, :]
        turned_first = first.to(tl.float32) * cosine - second.to(tl.float32) * sine
        turned_second = second.to(tl.float32) * cosine + first.to(tl.float32) * sine
        first = tl.where(is_value[:, None], first, turned_first.to(first.dtype))
        second = tl.where(is_value[:, None], second, turned_second.to(second.dtype))
        turned = real & is_query
        tl.store(qkv_ptr + source, first, mask=turned[:, None])
        tl.store(qkv_ptr + source + HEAD_DIM // 2, second, mask=turned[:, None])

    kv_head = tl.where(is_value, head - N_HEADS - N_KV_HEADS, head - N_HEADS)
    token = is_value * BLOCK_TOKENS + slot % BLOCK_TOKENS
    inside = token * (N_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
    target = (slot // BLOCK_TOKENS) * BLOCK_STRIDE + inside[:, None] + half[None, :]
    kept = real & (head >= N_HEADS)
    tl.store(kv_ptr + target, first, mask=kept[:, None])
    tl.store(kv_ptr + target + HEAD_DIM // 2, second, mask=kept[:, None])
