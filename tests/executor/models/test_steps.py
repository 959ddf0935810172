"""However a sequence is cut into steps and wherever its blocks and weights lie, it is the same sequence."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from executor.models.layout import new_region
from executor.models.spec import Family
from executor.models.step import Row
from tests.executor.models.tiny import CPU, N_BLOCKS, Tiny, tiny_model, unwritten_kv

FAMILIES = [Family.OPT, Family.LLAMA]
PROMPT = [(13 * i + 2) % 97 for i in range(53)]
BLOCKS = [11, 3, 20, 7]
ROUNDING = 1e-12  # float64, sums in another order


def last_logits(tiny: Tiny, cuts: list[int], blocks: list[int] = BLOCKS) -> Tensor:
    """Logits after the prompt, computed in the pieces between the cuts."""
    logits = torch.empty(0)
    for first, end in pairwise([0, *cuts, len(PROMPT)]):
        _, logits = tiny.step(Row(token_ids=PROMPT[first:end], n_before=first, blocks=blocks))
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_gives_what_the_whole_prompt_gives(family: Family) -> None:
    tiny = tiny_model(family)
    whole = last_logits(tiny, [])
    single = last_logits(replace(tiny, kv=unwritten_kv(tiny.spec)), list(range(1, len(PROMPT))))
    torch.testing.assert_close(single, whole, rtol=ROUNDING, atol=ROUNDING)


@settings(max_examples=15)
@given(cuts=st.sets(st.integers(1, len(PROMPT) - 1), max_size=5), family=st.sampled_from(FAMILIES))
def test_cutting_a_prompt_anywhere_changes_nothing(cuts: set[int], family: Family) -> None:
    tiny = tiny_model(family)
    whole = last_logits(tiny, [])
    cut = last_logits(replace(tiny, kv=unwritten_kv(tiny.spec)), sorted(cuts))
    torch.testing.assert_close(cut, whole, rtol=ROUNDING, atol=ROUNDING)


@settings(max_examples=15)
@given(blocks=st.permutations(range(N_BLOCKS)), family=st.sampled_from(FAMILIES))
def test_scattered_blocks_give_the_same_bits_as_blocks_in_a_row(blocks: list[int], family: Family) -> None:
    tiny = tiny_model(family)
    in_a_row = last_logits(tiny, [20, 21], [0, 1, 2, 3])
    scattered = last_logits(replace(tiny, kv=unwritten_kv(tiny.spec)), [20, 21], blocks[:4])
    assert torch.equal(scattered, in_a_row)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_gives_the_same_bits_from_every_place(family: Family) -> None:
    tiny = tiny_model(family)
    elsewhere = [new_region(tiny.decoder.layout.n_bytes + 512, CPU)[512:] for _ in tiny.regions]
    for home, slot in zip(tiny.regions, elsewhere, strict=True):
        slot.copy_(home)
    moved = replace(tiny, regions=elsewhere, kv=unwritten_kv(tiny.spec))
    assert torch.equal(last_logits(moved, [30, 31]), last_logits(tiny, [30, 31]))
    assert torch.equal(moved.kv[BLOCKS[:3]], tiny.kv[BLOCKS[:3]])


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_in_one_step_do_not_see_each_other(family: Family) -> None:
    tiny = tiny_model(family)
    tiny.step(Row(token_ids=PROMPT[:17], n_before=0, blocks=[1, 2], samples=False))
    decode = Row(token_ids=[9], n_before=17, blocks=[1, 2])
    prefill = Row(token_ids=PROMPT[:30], n_before=0, blocks=[4, 5])
    chunk = Row(token_ids=PROMPT[40:45], n_before=0, blocks=[6], samples=False)
    _, together = tiny.step(prefill, chunk, decode)
    alone = torch.cat([tiny.step(row)[1] for row in (prefill, decode)])
    torch.testing.assert_close(together, alone, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_touches_no_block_but_its_own(family: Family) -> None:
    tiny = tiny_model(family)
    last_logits(tiny, [20, 21])
    others = [block for block in range(N_BLOCKS) if block not in BLOCKS]
    assert tiny.kv[others].isnan().all()
    assert not tiny.kv[BLOCKS[:3]].isnan().any()


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (Row(token_ids=[], n_before=3, blocks=[1]), "row 0 has no new token"),
        (Row(token_ids=[1], n_before=16, blocks=[1]), "1 blocks of 16 hold less than 17 tokens"),
        (Row(token_ids=[1], n_before=0, blocks=[1] * 7), "7 blocks exceed the table's 6"),
    ],
)
def test_a_row_that_no_step_can_carry_out_is_refused(row: Row, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        tiny_model(Family.OPT).step(row)
