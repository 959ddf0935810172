from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fit_roofline import read_machine, read_shape
from policies.types import Work
from sim.compute.curve import Curve
from sim.compute.fit import decode, prefill
from sim.compute.roofline import ModelRoofline
from sim.compute.table import TableModel
from tests.sim.tables import BEHIND, BUCKETS, CONTEXTS, PROMPTS, behind, prompts, sampled_from, timing
from traces.measured.device_tables import Padding, Part, read_table, write_table

OPT_13B = read_shape("opt_13b")
H200 = ModelRoofline(read_machine(Path(__file__).parents[2] / "conf" / "hardware" / "h200_pcie.yaml"), OPT_13B)
TABLE = sampled_from(H200, OPT_13B)
MODEL = TableModel(TABLE)
PADDED = replace(TABLE.padding, prefill_tokens=(64, 256, 1024), tokens_per_seq=8)
GRAPHED = TableModel(replace(TABLE, padding=PADDED))

points = st.dictionaries(st.integers(0, 10_000), st.integers(0, 10**9), min_size=1, max_size=8).map(
    lambda found: sorted(found.items())
)
works = st.builds(
    Work,
    n_prefill_tokens=st.integers(0, 5000),
    n_prefill_seqs=st.integers(1, 40),
    prefill_pairs=st.integers(0, 10**7),
    n_decode_seqs=st.integers(1, 200),
    decode_context_tokens=st.integers(1, 10**6),
    n_sampled=st.integers(0, 200),
)


@given(points, st.integers(0, 20_000))
def test_a_curve_goes_through_its_points_is_flat_before_them_and_straight_between(
    measured: list[tuple[int, int]], at: int
) -> None:
    curve = Curve(measured)
    assert all(curve(where) == ns for where, ns in measured)
    assert curve(at) == measured[0][1] or at > measured[0][0]
    for (left, left_ns), (right, right_ns) in pairwise(measured):
        if left <= at <= right:
            assert min(left_ns, right_ns) <= curve(at) <= max(left_ns, right_ns)


def test_a_curve_goes_on_along_its_last_slope() -> None:
    assert Curve([(0, 5), (10, 10), (20, 30)])(25) == 40


@given(points, st.integers(0, 12_000), st.integers(1, 40), st.integers(1, 700))
def test_a_curve_read_along_is_the_curve_read_place_by_place(
    measured: list[tuple[int, int]], first: int, n: int, step: int
) -> None:
    curve = Curve(measured)
    assert curve.along(first, n, step) == [curve(first + k * step) for k in range(n)]


@given(points)
def test_a_rising_curve_never_falls_and_keeps_what_rises(measured: list[tuple[int, int]]) -> None:
    curve = Curve(measured, rising=True)
    read = [curve(at) for at in range(0, 12_000, 97)]
    assert read == sorted(read)
    highest_ns = 0
    for at, ns in measured:
        highest_ns = max(highest_ns, ns)
        assert curve(at) == highest_ns


@given(st.integers(1, 100), st.integers(1, 300_000), st.integers(1, 300))
def test_repeated_steps_take_to_the_nanosecond_what_they_take_one_by_one(
    n_seqs: int, context_tokens: int, n_steps: int
) -> None:
    work = decode(n_seqs, context_tokens)
    each = [replace(work, decode_context_tokens=context_tokens + k * n_seqs) for k in range(n_steps)]
    assert list(MODEL.repeated_layer_ns(work, n_steps)) == [MODEL.layer_ns(step) for step in each]


@given(st.integers(1, 64), st.integers(1, 100_000), st.integers(1, 200))
def test_the_steps_of_a_leap_never_get_shorter(n_seqs: int, context_tokens: int, n_steps: int) -> None:
    layers_ns = list(MODEL.repeated_layer_ns(decode(n_seqs, context_tokens), n_steps))
    assert layers_ns == sorted(layers_ns)


def test_measured_steps_take_what_was_measured() -> None:
    for n in BUCKETS:
        for context in CONTEXTS:
            work = decode(n, n * context)
            assert MODEL.layer_ns(work) == H200.layer_ns(work)
            assert MODEL.head_ns(work) == H200.head_ns(work)
            assert MODEL.host_ns(work) == H200.host_ns(work)
    for n in PROMPTS:
        assert MODEL.layer_ns(prefill(n)) == pytest.approx(H200.layer_ns(prefill(n)), abs=1)
        assert MODEL.layer_ns(behind(n, BEHIND)) == pytest.approx(H200.layer_ns(behind(n, BEHIND)), rel=1e-3)


def test_a_decode_step_is_padded_to_the_next_batch_that_was_measured() -> None:
    assert MODEL.layer_ns(decode(33, 20_000)) == MODEL.layer_ns(decode(64, 20_000))
    assert MODEL.head_ns(decode(33, 20_000)) == MODEL.head_ns(decode(64, 20_000))
    assert MODEL.host_ns(decode(33, 20_000)) < MODEL.host_ns(decode(64, 20_000))


@given(st.integers(1, 64), st.integers(16, 2048))
def test_where_steps_are_not_padded_they_take_what_lies_between_two_batches(n_seqs: int, context: int) -> None:
    model = TableModel(replace(TABLE, padding=Padding()))
    layer_ns = model.layer_ns(decode(n_seqs, n_seqs * context))
    assert layer_ns == pytest.approx(H200.layer_ns(decode(n_seqs, n_seqs * context)), rel=0.02)
    assert layer_ns <= MODEL.layer_ns(decode(64, 64 * context))


@pytest.mark.parametrize("n_seqs", [1, 2, 7])
@pytest.mark.parametrize("n_tokens", [64, 200, 256])
def test_prompts_of_one_step_pay_once_for_what_they_share(n_seqs: int, n_tokens: int) -> None:
    together = prompts([(n_tokens, 0)] * n_seqs)
    assert MODEL.layer_ns(together) == pytest.approx(H200.layer_ns(together), rel=0.05)
    assert MODEL.layer_ns(together) < n_seqs * MODEL.layer_ns(prefill(n_tokens)) or n_seqs == 1


def test_prompts_of_unequal_lengths_pay_for_their_pairs() -> None:
    unequal = prompts([(64, 0), (960, 0)])
    assert MODEL.layer_ns(unequal) > MODEL.layer_ns(prompts([(512, 0)] * 2))
    assert MODEL.layer_ns(unequal) == pytest.approx(H200.layer_ns(unequal), rel=0.05)


def test_a_layer_is_not_done_before_the_host_has_launched_it() -> None:
    slow = [replace(each, ns=10**9 * each.n_seqs) for each in TABLE.of(Part.LAUNCH)]
    others = [each for each in TABLE.timings if each.part is not Part.LAUNCH]
    bound = TableModel(replace(TABLE, padding=PADDED, timings=(*others, *slow)))
    assert bound.layer_ns(prefill(1025)) == 10**9
    assert bound.layer_ns(replace(prefill(16), n_decode_seqs=3, decode_context_tokens=99)) == 4 * 10**9
    assert bound.layer_ns(prefill(1024)) == GRAPHED.layer_ns(prefill(1024)), "a graph needs no such launches"
    assert bound.layer_ns(decode(4, 100)) == GRAPHED.layer_ns(decode(4, 100))


def test_a_step_of_prefills_is_padded_to_the_next_graph_that_holds_its_tokens_and_sequences() -> None:
    nothing_seen = {n: replace(prefill(n), prefill_pairs=0) for n in PROMPTS}
    attention_ns = {n: H200.layer_ns(prefill(n)) - H200.layer_ns(nothing_seen[n]) for n in PROMPTS}
    for n_rows in PADDED.prefill_tokens:
        assert GRAPHED.layer_ns(prefill(n_rows)) == pytest.approx(H200.layer_ns(prefill(n_rows)), abs=1)
    padded_ns = H200.layer_ns(nothing_seen[256]) + attention_ns[64]
    assert GRAPHED.layer_ns(prefill(65)) == pytest.approx(padded_ns, rel=0.01)
    assert GRAPHED.layer_ns(prompts([(2, 0)] * 9)) >= H200.layer_ns(nothing_seen[256]), "9 sequences want 72 rows"
    assert GRAPHED.layer_ns(prefill(1536)) == MODEL.layer_ns(prefill(1536))


def test_beside_decodes_or_beyond_the_largest_graph_prefills_are_not_padded() -> None:
    mixed = replace(prefill(65), n_decode_seqs=1, decode_context_tokens=16)
    assert GRAPHED.layer_ns(mixed) == MODEL.layer_ns(mixed)
    assert GRAPHED.host_ns(mixed) == H200.host_ns(decode(2, 2))
    assert GRAPHED.host_ns(prefill(1025)) == H200.host_ns(decode(1, 1))
    assert GRAPHED.host_ns(prefill(1024)) == H200.host_ns(decode(1, 1)) // 2


@given(st.integers(1, 2000), st.integers(1, 200))
def test_padding_is_the_least_that_holds_tokens_and_sequences(n_tokens: int, n_seqs: int) -> None:
    n_rows = PADDED.prefill_rows(n_tokens, n_seqs)
    fitting = [each for each in PADDED.prefill_tokens if each >= n_tokens and each // 8 >= n_seqs]
    assert n_rows == min(fitting, default=None)
    assert Padding().prefill_rows(n_tokens, n_seqs) is None


def test_decodes_beside_prompts_add_their_attention() -> None:
    alone = prefill(512)
    mixed = replace(alone, n_decode_seqs=64, decode_context_tokens=64 * 512)
    decode_attention_ns = H200.layer_ns(decode(64, 64 * 512)) - H200.layer_ns(replace(prefill(64), prefill_pairs=0))
    grown_ns = MODEL.layer_ns(mixed) - MODEL.layer_ns(alone)
    assert grown_ns > decode_attention_ns


@given(works)
def test_any_step_takes_whole_positive_nanoseconds(work: Work) -> None:
    if not work.n_prefill_tokens:
        work = replace(work, n_prefill_seqs=0, prefill_pairs=0)
    assert MODEL.layer_ns(work) >= 1
    assert min(MODEL.head_ns(work), MODEL.host_ns(work)) >= 0
    assert GRAPHED.layer_ns(work) >= 1
    assert GRAPHED.host_ns(work) >= 0


def test_beyond_what_was_measured_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    model = TableModel(TABLE)
    with caplog.at_level(logging.WARNING):
        for n_seqs in (64, 80, 100):
            model.layer_ns(decode(n_seqs, n_seqs * 4096))
    assert model.outside == {Part.DECODE_LAYER}
    (said,) = caplog.messages
    assert "decode_layer of OPT-13b" in said
    assert "made up" in said
    last = decode(64, 64 * 2048)
    per_token_ns = (MODEL.layer_ns(last) - MODEL.layer_ns(decode(64, 64 * 512))) / (64 * 1536)
    beyond = model.layer_ns(decode(64, 64 * 4096))
    assert beyond == pytest.approx(MODEL.layer_ns(last) + 64 * 2048 * per_token_ns, rel=1e-6)


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    path = write_table(tmp_path, GRAPHED.table)
    assert path.name == "opt_13b.csv"
    assert read_table(tmp_path, OPT_13B) == GRAPHED.table


def test_a_model_that_was_not_measured_is_refused_with_what_was(tmp_path: Path) -> None:
    write_table(tmp_path, TABLE)
    with pytest.raises(ValueError, match=r"measured are opt_13b; run python -m executor profile --model llama_3_8b"):
        read_table(tmp_path, read_shape("llama_3_8b"))


def test_a_table_of_another_model_of_that_name_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path, TABLE)
    with pytest.raises(ValueError, match="ffn 20480 there, 4096 here"):
        read_table(tmp_path, replace(OPT_13B, ffn=4096))


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        (("1,1,16,", "1,one,16,"), "line 3: invalid literal"),
        (("decode_layer", "decode_lair"), "line 3: 'decode_lair' is not a valid Part"),
        (("n_samples", "samples"), "the columns are"),
        (('"schema_version": 2', '"schema_version": 9'), "schema version 9"),
        (("# {", "{{"), "line 1 is not the comment"),
    ],
)
def test_a_faulty_table_is_refused_with_its_line(tmp_path: Path, spoiled: tuple[str, str], said: str) -> None:
    path = write_table(tmp_path, TABLE)
    path.write_text(path.read_text().replace(*spoiled, 1))
    with pytest.raises(ValueError, match=said):
        read_table(tmp_path, OPT_13B)


def test_a_table_without_a_part_is_refused() -> None:
    without = replace(TABLE, timings=[each for each in TABLE.timings if each.part != Part.LAUNCH])
    with pytest.raises(ValueError, match="has no launch"):
        TableModel(without)


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="ns=-1"):
        timing(Part.HEAD, 1, 1, 0, -1)
