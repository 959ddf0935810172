# pyright: basic
# (torch, safetensors and transformers leave parts of their interfaces untyped)
"""Triton's kernels against the reference; ``test_triton_paged.py`` runs this file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from executor.attention.sdpa import SdpaKernels
from executor.attention.tiling import GROUPED_HEADS, SINGLE_HEADS, SPREAD, Tiling, tiling_for
from executor.attention.triton_paged import TritonKernels
from executor.models.prefill_buffers import PrefillBuffers
from executor.models.rotary import Rotary
from executor.models.step import Row, StepInput, compose

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL_TILES = Tiling(tile_tokens=16, n_warps=1, n_stages=1)
TILINGS = [
    *(replace(tiling, n_programs=n) for tiling in (SINGLE_HEADS, GROUPED_HEADS, SMALL_TILES) for n in (1, 32)),
    *(replace(SMALL_TILES, n_programs=n, spread=spread) for n in (1, 32) for spread in (2, 4)),
]
SIZES = [(4, 4), (8, 2)]  # heads, KV heads
HEAD_DIM, BLOCK_TOKENS, N_LAYERS, LAYER = 32, 16, 2, 1


def ragged_step() -> StepInput:
    """Contexts of 37, 1, 64 and 0 tokens in scattered blocks: the end of a block, the start of one, padding."""
    rows = [
        Row(token_ids=[1], n_before=36, blocks=[3, 7, 1]),
        Row(token_ids=[1], n_before=0, blocks=[4]),
        Row(token_ids=[1], n_before=63, blocks=[5, 9, 2, 6]),
        Row(token_ids=[1], n_before=0, blocks=[0]),
    ]
    step = compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=6, device=DEVICE)
    is_real = torch.tensor([1, 1, 1, 0], device=DEVICE)
    return replace(step, contexts=step.contexts * is_real.int(), slots=torch.where(is_real > 0, step.slots, -1))


def random_kv(n_kv_heads: int) -> Tensor:
    """KV of which block 0 and what lies past each context is not a number."""
    kv = torch.randn(10, N_LAYERS, 2, BLOCK_TOKENS, n_kv_heads, HEAD_DIM, device=DEVICE)
    kv[0], kv[1, :, :, 5:], kv[4, :, :, 1:] = torch.nan, torch.nan, torch.nan
    return kv


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), SIZES)
def test_decoding_agrees_with_the_reference(n_heads: int, n_kv_heads: int, tiling: Tiling) -> None:
    torch.manual_seed(3)
    step, kv = ragged_step(), random_kv(n_kv_heads)
    query = torch.randn(4, n_heads, HEAD_DIM, device=DEVICE)
    ours = TritonKernels(tiling).decode(query, kv, LAYER, step)
    torch.testing.assert_close(ours, SdpaKernels().decode(query, kv, LAYER, step), rtol=1e-5, atol=1e-5)
    assert ours[3].eq(0).all()


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_where_blocks_lie_changes_no_bit(tiling: Tiling) -> None:
    torch.manual_seed(4)
    step, kv = ragged_step(), random_kv(4)
    query = torch.randn(4, 4, HEAD_DIM, device=DEVICE)
    moved_kv = kv.roll(3, dims=0)
    moved = replace(step, block_tables=(step.block_tables + 3) % 10)
    kernels = TritonKernels(tiling)
    assert torch.equal(kernels.decode(query, moved_kv, LAYER, moved), kernels.decode(query, kv, LAYER, step))


@pytest.mark.parametrize("is_rotary", [False, True])
@pytest.mark.parametrize(("n_heads", "n_kv_heads"), SIZES)
def test_storing_agrees_with_the_reference(n_heads: int, n_kv_heads: int, is_rotary: bool) -> None:
    torch.manual_seed(5)
    step, angles = ragged_step(), torch.randn(64, HEAD_DIM // 2, device=DEVICE)
    rotary = Rotary(angles.cos(), angles.sin()) if is_rotary else None
    qkv = torch.randn(4, (n_heads + 2 * n_kv_heads) * HEAD_DIM, device=DEVICE)
    ours, theirs = torch.zeros(2, 10, N_LAYERS, 2, BLOCK_TOKENS, n_kv_heads, HEAD_DIM, device=DEVICE)
    expected = SdpaKernels().store(qkv.clone(), theirs, LAYER, step, rotary)
    query = TritonKernels().store(qkv.clone(), ours, LAYER, step, rotary)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(query[:3], expected[:3], rtol=1e-6, atol=1e-6)
    assert ours.count_nonzero() == 3 * 2 * n_kv_heads * HEAD_DIM


PREFILLS = [
    Row(token_ids=[1] * 70, n_before=0, blocks=[3, 7, 1, 8, 2]),  # a whole prompt of two tiles
    Row(token_ids=[1] * 5, n_before=40, blocks=[5, 9, 6]),  # behind more tokens than it has
    Row(token_ids=[1] * 2, n_before=15, blocks=[11, 10]),  # over the end of a block
]
DECODE = Row(token_ids=[1], n_before=18, blocks=[13, 12])


def composed(*rows: Row) -> StepInput:
    return compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=6, device=DEVICE)


def stored_kv(rows: list[Row], n_kv_heads: int) -> Tensor:
    """KV that is not a number where no sequence has a token."""
    kv = torch.full((16, N_LAYERS, 2, BLOCK_TOKENS, n_kv_heads, HEAD_DIM), torch.nan, device=DEVICE)
    for row in rows:
        for nth, block in enumerate(row.blocks):
            kv[block, :, :, : row.context - nth * BLOCK_TOKENS].normal_()
    return kv


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), SIZES)
def test_prefilling_agrees_with_the_reference(n_heads: int, n_kv_heads: int) -> None:
    torch.manual_seed(6)
    step, kv = composed(*PREFILLS, DECODE), stored_kv([*PREFILLS, DECODE], n_kv_heads)
    query = torch.randn(step.n_rows, n_heads, HEAD_DIM, device=DEVICE)
    ours, theirs = (kernels.prefill(query, kv, LAYER, step)[1:] for kernels in (TritonKernels(), SdpaKernels()))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_prefills_have_the_same_bits_wherever_blocks_lie_and_however_the_step_is_padded() -> None:
    torch.manual_seed(7)
    step, kv = composed(*PREFILLS), stored_kv(PREFILLS, 4)
    query = torch.randn(128, 4, HEAD_DIM, device=DEVICE)
    kernels, buffers = TritonKernels(), PrefillBuffers(6, BLOCK_TOKENS, DEVICE)
    buffers.fill([replace(PREFILLS[0], blocks=[15] * 5)], 128)  # leaves traces that must not show
    attended = kernels.prefill(query[: step.n_rows], kv, LAYER, step)
    moved = [replace(row, blocks=[(block + 3) % 16 for block in row.blocks]) for row in PREFILLS]
    padded = kernels.prefill(query, kv.roll(3, dims=0), LAYER, buffers.fill(moved, 128))
    assert torch.equal(padded[: step.n_rows], attended)


def test_heads_of_a_size_that_tiles_do_not_take_are_refused() -> None:
    kv = torch.zeros(1, N_LAYERS, 2, BLOCK_TOKENS, 4, 80, device=DEVICE)
    with pytest.raises(ValueError, match="head_dim=80 is no power of two"):
        TritonKernels().decode(torch.zeros(4, 4, 80, device=DEVICE), kv, LAYER, ragged_step())


def test_contexts_are_split_until_there_are_programs_enough() -> None:
    # 528 programs at least: 64 x 40 suffice whole; 1 x 40 need 13.2 splits, so 16; 1 x 8 would need 66, 32 is the most.
    assert [SINGLE_HEADS.n_splits(*sizes) for sizes in [(64, 40), (1, 40), (1, 8)]] == [1, 16, 32]


def test_uneven_contexts_are_what_the_tiling_of_middling_batches_is_for() -> None:
    single, shared = ([tiling_for(40, n_kv_heads, batch) for batch in (4, 8, 64, 128)] for n_kv_heads in (40, 8))
    assert single == [SINGLE_HEADS, SPREAD, SINGLE_HEADS, SINGLE_HEADS]
    assert shared == [GROUPED_HEADS, SPREAD, SPREAD, GROUPED_HEADS]


def test_with_a_spread_only_long_contexts_are_split_further() -> None:
    tiling = Tiling(tile_tokens=64, n_warps=4, spread=4)
    assert [tiling.n_splits(64, 40), tiling.n_splits_at_most(64, 40), tiling.n_splits_at_most(1, 8)] == [1, 4, 32]
