# pyright: basic
# (torch, safetensors and transformers leave parts of their interfaces untyped)
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.models.decode_buffers import DecodeBuffers, bucket_of
from executor.models.decoder import greedy
from executor.models.spec import Family
from executor.models.step import PADDING_SLOT, Row, compose
from tests.executor.models.tiny import BLOCK_TOKENS, CPU, MAX_BLOCKS, tiny_model


@st.composite
def decodes(draw: st.DrawFn) -> list[Row]:
    blocks = iter(draw(st.permutations(range(24))))
    rows: list[Row] = []
    for _ in range(draw(st.integers(0, 4))):
        n_before = draw(st.integers(0, 5 * BLOCK_TOKENS - 1))
        mine = [next(blocks) for _ in range(n_before // BLOCK_TOKENS + 1)]
        rows.append(Row(token_ids=[draw(st.integers(0, 96))], n_before=n_before, blocks=mine))
    return rows


@given(first=decodes(), second=decodes())
def test_a_filled_step_is_the_composed_step_and_padding(first: list[Row], second: list[Row]) -> None:
    buffers = DecodeBuffers(8, MAX_BLOCKS, BLOCK_TOKENS, CPU)
    buffers.fill(first, 8)  # leaves traces that must not show
    step = buffers.fill(second, 4)
    expected = compose([*second, Row(token_ids=[0], n_before=0, blocks=[0])], block_tokens=16, max_blocks=6, device=CPU)
    n = len(second)
    for name in ("token_ids", "positions", "slots", "contexts"):
        assert torch.equal(getattr(step, name)[:n], getattr(expected, name)[:n])
    for index, row in enumerate(second):
        assert step.block_tables[index, : len(row.blocks)].tolist() == row.blocks
    assert step.contexts[n:].eq(0).all()
    assert step.slots[n:].eq(PADDING_SLOT).all()


def test_blocks_that_changed_in_place_since_the_last_step_are_seen() -> None:
    buffers, blocks = DecodeBuffers(8, MAX_BLOCKS, BLOCK_TOKENS, CPU), [4, 9]
    for change in (lambda: None, lambda: blocks.append(11), lambda: blocks.__setitem__(0, 2), blocks.clear):
        change()
        blocks.extend([5] if not blocks else [])
        step = buffers.fill([Row(token_ids=[1], n_before=len(blocks) * BLOCK_TOKENS - 1, blocks=blocks)], 2)
        assert step.block_tables[0, : len(blocks)].tolist() == blocks
        assert step.slots.tolist() == [blocks[-1] * BLOCK_TOKENS + BLOCK_TOKENS - 1, PADDING_SLOT]


def test_a_step_of_a_bucket_stays_at_its_address() -> None:
    buffers = DecodeBuffers(8, MAX_BLOCKS, BLOCK_TOKENS, CPU)
    before = buffers.step(4)
    after = buffers.fill([Row(token_ids=[3], n_before=5, blocks=[1])], 4)
    assert before.token_ids.data_ptr() == after.token_ids.data_ptr()
    assert before.token_ids.tolist() == [3, 0, 0, 0]


@settings(max_examples=10)
@given(family=st.sampled_from([Family.OPT, Family.LLAMA]))
def test_advancing_on_the_device_decodes_the_same_tokens_as_filling_each_step(family: Family) -> None:
    tiny, buffers = tiny_model(family), DecodeBuffers(4, MAX_BLOCKS, BLOCK_TOKENS, CPU)
    row = Row(token_ids=[9], n_before=14, blocks=[3, 5])
    tiny.step(Row(token_ids=list(range(14)), n_before=0, blocks=[3, 5]))
    filled: list[int] = [9]
    for n_before in range(14, 20):
        _, logits = tiny.step(Row(token_ids=filled[-1:], n_before=n_before, blocks=[3, 5]))
        filled.append(int(greedy(logits)))

    step, advanced = buffers.fill([row], 2), [9]
    for _ in range(6):
        _, logits = tiny.decoder.run(tiny.regions, tiny.kv, step)
        buffers.advance(step, greedy(logits))
        advanced.append(int(step.token_ids[0]))
    assert advanced == filled
    assert step.contexts.tolist() == [21, 0]


def test_padding_leaves_the_other_rows_and_the_cache_alone() -> None:
    tiny, buffers = tiny_model(Family.LLAMA), DecodeBuffers(4, MAX_BLOCKS, BLOCK_TOKENS, CPU)
    _, logits = tiny.decoder.run(tiny.regions, tiny.kv, buffers.clear(4))
    assert tiny.kv.isnan().all()
    assert logits.isfinite().all()


def test_a_bucket_holds_its_sequences_or_there_is_none() -> None:
    assert [bucket_of(n) for n in (1, 3, 64, 65)] == [1, 4, 64, 128]
    with pytest.raises(ValueError, match="257 sequences exceeds the largest bucket, 256"):
        bucket_of(257)


def test_a_prefill_does_not_fit_into_a_decode_step() -> None:
    with pytest.raises(ValueError, match="row 0 has 2 new tokens"):
        DecodeBuffers(4, 6, 16, CPU).fill([Row(token_ids=[1, 2], n_before=0, blocks=[1])], 4)
