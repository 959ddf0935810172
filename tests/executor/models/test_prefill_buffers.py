# pyright: basic
# (torch leaves parts of its interface untyped)
from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.models.prefill_buffers import PrefillBuffers, prefill_bucket_of
from executor.models.step import PADDING_SLOT, TILE_ROWS, Row, compose
from tests.executor.models.tiny import BLOCK_TOKENS, CPU, MAX_BLOCKS


@st.composite
def prefills(draw: st.DrawFn) -> list[Row]:
    blocks = iter(draw(st.permutations(range(24))))
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 4))):
        n_new, n_before = draw(st.integers(2, 70)), draw(st.integers(0, 20))
        mine = [next(blocks) for _ in range(-(-(n_new + n_before) // BLOCK_TOKENS))]
        token_ids = draw(st.lists(st.integers(0, 96), min_size=n_new, max_size=n_new))
        rows.append(Row(token_ids=token_ids, n_before=n_before, blocks=mine, samples=draw(st.booleans())))
    return rows


@given(first=prefills(), second=prefills())
def test_a_filled_step_is_the_composed_step_and_padding(first: list[Row], second: list[Row]) -> None:
    buffers = PrefillBuffers(MAX_BLOCKS, BLOCK_TOKENS, CPU)
    buffers.fill(first, 384)  # leaves traces that must not show
    step = buffers.fill(second, 384)
    expected = compose(second, block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=CPU)
    n_rows = expected.n_rows
    for name in ("token_ids", "positions", "slots"):
        assert torch.equal(getattr(step, name)[:n_rows], getattr(expected, name))
    assert step.n_rows == 384
    assert step.slots[n_rows:].eq(PADDING_SLOT).all()
    assert torch.equal(step.sampled, expected.sampled)
    assert step.prefills is not None
    assert expected.prefills is not None
    n_tiles = expected.prefills.tiles.shape[0]
    assert torch.equal(step.prefills.tiles[:n_tiles], expected.prefills.tiles)
    assert step.prefills.tiles[n_tiles:].eq(0).all()
    assert torch.equal(step.prefills.tables[: len(second)], expected.prefills.tables)


@given(rows=prefills())
def test_tiles_cover_every_row_of_a_prefill_once(rows: list[Row]) -> None:
    decode = Row(token_ids=[1], n_before=0, blocks=[0])
    step = compose([*rows, decode], block_tokens=BLOCK_TOKENS, max_blocks=MAX_BLOCKS, device=CPU)
    assert step.prefills is not None
    covered = [(row, table) for first, n, table in step.prefills.tiles.tolist() for row in range(first, first + n)]
    owners = [1 + index for index, row in enumerate(rows) for _ in row.token_ids]  # the decode's table is the first
    assert covered == list(enumerate(owners, start=1))
    assert all(0 < n <= TILE_ROWS for _, n, _ in step.prefills.tiles.tolist())


def test_a_step_of_a_bucket_stays_at_its_address() -> None:
    buffers, row = PrefillBuffers(MAX_BLOCKS, BLOCK_TOKENS, CPU), Row(token_ids=[3, 4], n_before=5, blocks=[1])
    before, after = buffers.fill((), 32), buffers.fill([row], 32)
    assert before.token_ids.data_ptr() == after.token_ids.data_ptr()
    assert before.token_ids.tolist() == [3, 4] + [0] * 30


def test_a_bucket_holds_tokens_and_sequences_or_there_is_none() -> None:
    def bucket(n_seqs: int, n_new: int) -> int | None:
        return prefill_bucket_of([Row(token_ids=[1] * n_new, n_before=0, blocks=[1])] * n_seqs)

    assert [bucket(*size) for size in [(1, 2), (1, 200), (4, 24), (16, 24)]] == [32, 256, 128, 384]
    assert bucket(5, 2) == 64  # 10 tokens would fit into 32 rows, which take four sequences
    assert bucket(60, 30) is None
    assert prefill_bucket_of([Row(token_ids=[1], n_before=0, blocks=[1])]) is None


def test_what_a_bucket_does_not_hold_is_refused() -> None:
    row = Row(token_ids=[1] * 40, n_before=0, blocks=[1, 2, 3])
    with pytest.raises(ValueError, match="40 tokens of 1 sequences exceed the bucket of 32"):
        PrefillBuffers(MAX_BLOCKS, BLOCK_TOKENS, CPU).fill([row], 32)
