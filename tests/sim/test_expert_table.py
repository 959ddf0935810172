from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import Work
from sim.compute.expert_table import ExpertTableModel
from sim.compute.table import FS_PER_NS
from tests.sim.tables import prompts, timing
from tests.sim.test_moe_model_files import read
from tests.sim.test_moe_roofline import decode, read_ranks
from traces.measured.device_tables import Padding, Part, Timing
from traces.measured.expert_tables import ExpertTimings, read_expert_table, write_expert_table

SHAPE = read("qwen3_30b_a3b")
RANKS = read_ranks("h200_x1")
BUCKETS = (1, 2, 4, 8, 16)
CONTEXTS = (16, 512, 4096)
PROMPTS = (2, 16, 64, 512, 2048)
LAUNCH_NS = 300_000


def others_ns(n_tokens: int) -> int:
    return 40_000 + 70 * n_tokens


def decode_attention_ns(n_context: int) -> int:
    return 10_000 + n_context


def prompt_attention_ns(n_tokens: int, n_before: int = 0) -> int:
    return 5_000 + n_tokens * (n_tokens + 2 * n_before) // 50


def used_by_decodes(n_seqs: int) -> int:
    return 8 * n_seqs


def used_by_a_prompt(n_tokens: int) -> int:
    return min(n_tokens, 16) + 8


def decodes_ns(n_seqs: int) -> int:
    return 10_000 + 2_000 * used_by_decodes(n_seqs)


def prompt_ns(n_tokens: int) -> int:
    return 20_000 + 2_000 * used_by_a_prompt(n_tokens) + 200 * n_tokens


def experts(n_seqs: int, n_tokens: int, ns: int, n_used: int) -> Timing:
    return replace(timing(Part.EXPERTS, n_seqs, n_tokens, 0, ns), n_experts=n_used)


def timings() -> Iterator[Timing]:
    """Of a device whose times are known: in a graph the first piece takes what it takes alone."""
    for n in BUCKETS:
        for context in (n * each for each in CONTEXTS):
            layer_ns = others_ns(n) + decode_attention_ns(context) + decodes_ns(n)
            yield timing(Part.DECODE_LAYER, n, n, context, layer_ns)
            yield timing(Part.DECODE_ATTENTION, n, n, context, decode_attention_ns(context))
        yield experts(n, n, decodes_ns(n), used_by_decodes(n))
        yield timing(Part.HEAD, n, n, 0, 150_000 + n)
        yield timing(Part.DECODE_HOST, n, n, 0, 400_000 + n)
        yield timing(Part.PREFILL_HOST, n, n, 0, 900_000 + n)
    for n in (1, *PROMPTS):
        yield timing(Part.OTHERS, 0, n, 0, others_ns(n))
    for n in PROMPTS:
        yield experts(1, n, prompt_ns(n), used_by_a_prompt(n))
        for before in (0, 4096):
            yield timing(Part.PREFILL_ATTENTION, 1, n, before, prompt_attention_ns(n, before))
    yield timing(Part.LAUNCH, 1, 9, 0, LAUNCH_NS)


TABLE = ExpertTimings(
    shape=SHAPE,
    n_ranks=1,
    padding=Padding(decode_seqs=BUCKETS),
    about={"device": "made up"},
    timings=tuple(timings()),
)
MODEL = ExpertTableModel(TABLE, RANKS)


def layer_ns(work: Work, model: ExpertTableModel = MODEL) -> int:
    return model.layers(work)[0].all_ns


def beside(work: Work, n_seqs: int, n_context: int) -> Work:
    """The same step with decodes."""
    n_sampled = work.n_sampled + n_seqs
    return replace(work, n_decode_seqs=n_seqs, decode_context_tokens=n_seqs * n_context, n_sampled=n_sampled)


@pytest.mark.parametrize("n_seqs", BUCKETS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_measured_decode_step_takes_what_was_measured(n_seqs: int, context: int) -> None:
    work = decode(n_seqs, context)
    assert layer_ns(work) == others_ns(n_seqs) + decode_attention_ns(n_seqs * context) + decodes_ns(n_seqs)
    assert len(MODEL.layers(work)) == SHAPE.n_layers
    assert (MODEL.head_ns(work), MODEL.host_ns(work)) == (150_000 + n_seqs, 400_000 + n_seqs)


@pytest.mark.parametrize("n_tokens", [512, 2048])
@pytest.mark.parametrize("before", [0, 4096])
def test_a_measured_prompt_takes_its_parts(n_tokens: int, before: int) -> None:
    wanted_ns = others_ns(n_tokens) + prompt_attention_ns(n_tokens, before) + prompt_ns(n_tokens)
    rounded_ns = 1 + n_tokens * before / FS_PER_NS  # a pair takes whole femtoseconds
    assert 0 <= max(LAUNCH_NS, wanted_ns) - layer_ns(prompts([(n_tokens, before)])) <= rounded_ns


def test_a_step_with_prompts_takes_no_less_than_its_launch_and_waits_before_the_experts() -> None:
    times = MODEL.layers(prompts([(16, 0)]))[0]
    assert times.all_ns == LAUNCH_NS
    assert times.gate_up_ns + times.down_ns == prompt_ns(16)
    assert times.gate_up_ns == prompt_ns(16) * SHAPE.gate_up_bytes // (SHAPE.gate_up_bytes + SHAPE.down_bytes)


def test_padding_reads_the_experts_of_one_token_more() -> None:
    both = MODEL.layers(decode(5, 512))[0], MODEL.layers(decode(8, 320))[0]
    assert both[0].mixer_ns == both[1].mixer_ns, "both are padded to 8, and read as much"
    assert both[0].gate_up_ns + both[0].down_ns == 10_000 + 2_000 * 8 * 6


def test_a_prompt_beside_decodes_reads_the_experts_of_both_once() -> None:
    # 24 of 128 experts are the prompt's, 64 the decodes': 128 x (1 - 24/128) x (1 - 64/128) = 52 are free, 76 in use,
    # 52 more than the prompt's, each of 2 us.
    work = beside(prompts([(2040, 0)]), 8, 512)
    more_ns = decode_attention_ns(8 * 512) + 52 * 2_000
    assert abs(layer_ns(work) - (others_ns(2048) + prompt_attention_ns(2040) + prompt_ns(2048) + more_ns)) < 1_000


@given(st.integers(1, 16), st.integers(1, 4096), st.integers(0, 2), st.integers(2, 2000), st.integers(0, 4000))
def test_more_of_anything_never_takes_less(n_seqs: int, context: int, n_prompts: int, n_tokens: int, more: int) -> None:
    less = beside(prompts([(n_tokens, 0)] * n_prompts), n_seqs, context) if n_prompts else decode(n_seqs, context)
    longer = replace(less, decode_context_tokens=less.decode_context_tokens + more)
    assert layer_ns(longer) >= layer_ns(less)
    if n_prompts:
        assert layer_ns(beside(prompts([(n_tokens + more, 0)] * n_prompts), n_seqs, context)) >= layer_ns(less)


def test_ranks_sum_what_the_table_does_not_tell() -> None:
    two = read_ranks("h200_x2")
    model = ExpertTableModel(replace(TABLE, n_ranks=2), two)
    assert model.layers(decode(8, 512))[0].reduce_ns == two.sum_ns(8, SHAPE.hidden) > 0
    with pytest.raises(ValueError, match="is of 1 ranks, not of 2"):
        ExpertTableModel(TABLE, two)


def test_a_table_without_a_part_is_refused() -> None:
    for part in {each.part for each in TABLE.timings}:
        lacking = replace(TABLE, timings=[each for each in TABLE.timings if each.part is not part])
        with pytest.raises(ValueError, match="measure it again") as refused:
            ExpertTableModel(lacking, RANKS)
        assert "\n" not in str(refused.value)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = write_expert_table(tmp_path, replace(TABLE, n_ranks=2))
    assert path.name == "qwen3_30b_a3b_tp2.csv"
    assert read_expert_table(tmp_path, SHAPE, 2) == replace(TABLE, n_ranks=2)
    with pytest.raises(ValueError, match=r"is not there: .*run python -m executor profile --model qwen3_30b_a3b, or"):
        read_expert_table(tmp_path, SHAPE, 1)
    with pytest.raises(ValueError, match=r"is not there: .*--model qwen3_30b_a3b --ranks 4, or"):
        read_expert_table(tmp_path, SHAPE, 4)
    with pytest.raises(ValueError, match="n_experts 128 there, 64 here; measure it again"):
        read_expert_table(tmp_path, replace(SHAPE, n_experts=64), 2)


def test_a_table_of_another_number_of_ranks_under_its_name_is_refused(tmp_path: Path) -> None:
    write_expert_table(tmp_path, TABLE).rename(tmp_path / "qwen3_30b_a3b_tp2.csv")
    with pytest.raises(ValueError, match="is of 1 ranks, not of 2"):
        read_expert_table(tmp_path, SHAPE, 2)
