from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fit_roofline import read_machine, read_shape
from policies.types import HardwareProfile, LinkProfile, Work
from sim.compute.attention import Attention, Shares
from sim.compute.grid import Grid
from sim.compute.profile import Graphs, Links, ProfileModel, profiled
from sim.factory import compute_models
from tests.sim.servers import (
    LAUNCHED_AHEAD_NS,
    OTHERS_NS,
    attention_rows,
    decode_us,
    prompt_us,
    write_profile,
)
from traces.measured.layer_profile import AttentionTiming, LayerProfile, UnevenTiming, read_layer_profile

CONF = Path(__file__).parents[2] / "conf"
REAL = Path(__file__).parents[3] / "shared" / "data" / "groundtruth" / "rtx4090_llama31_8b" / "layer_profile"
AHEAD = Graphs(ahead=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> LayerProfile:
    folder = tmp_path_factory.mktemp("profile")
    write_profile(folder)
    return read_layer_profile(folder / "layer_profile", 1)


def decodes(n: int, context: int) -> Work:
    return Work(0, 0, 0, n, n * context, n)


def prompts(*pieces: tuple[int, int], n_decodes: int = 0, context: int = 0) -> Work:
    """Pieces of (new tokens, tokens before)."""
    pairs = sum(n * (2 * before + n + 1) // 2 for n, before in pieces)
    n_sampled = len(pieces) + n_decodes
    return Work(sum(n for n, _ in pieces), len(pieces), pairs, n_decodes, n_decodes * context, n_sampled)


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_grid_gives_back_its_points_and_is_linear_between_them(x: int, y: int) -> None:
    def plane(at: tuple[int, int]) -> int:
        return 1000 + 30 * at[0] + 7 * at[1]

    grid = Grid((at, plane(at)) for at in [(a, b) for a in (0, 10, 100, 250) for b in (0, 50, 120)])
    assert abs(grid(x, y) - plane((x, y))) <= 2, "whole numbers are rounded down once an axis; slopes go on outside"


@given(st.data())
def test_a_grid_rises_where_its_points_do(data: st.DataObject) -> None:
    rises = st.lists(st.integers(0, 100), min_size=4, max_size=4)
    rows = [data.draw(rises) for _ in range(3)]
    points = {(a, b): sum(sum(row[: b + 1]) for row in rows[: a + 1]) for a in range(3) for b in range(4)}
    grid = Grid(((10 * a, 10 * b), ns) for (a, b), ns in points.items())
    at = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    assert grid(*at) <= grid(at[0] + 1, at[1]) + 1
    assert grid(*at) <= grid(at[0], at[1] + 1) + 1


def test_a_grid_with_missing_corners_goes_by_those_that_are_there() -> None:
    grid = Grid([((1, 16), 10), ((1, 32), 20), ((2, 16), 15)])
    assert grid(2, 32) == 15, "only the shorter context fitted beside two sequences"
    assert grid(1, 48) == 30
    assert grid(0, 0) == 10


def test_every_point_that_was_measured_comes_back(made: LayerProfile) -> None:
    model = ProfileModel(made)
    for n_new, before, n, kv, us in attention_rows():
        work = prompts((n_new, before), n_decodes=n, context=kv) if n_new else decodes(n, kv)
        assert model.layer_ns(work) == pytest.approx(OTHERS_NS + 1000 * us, abs=1.5)


@pytest.mark.skipif(not REAL.is_dir(), reason="the RTX 4090's profile is not here")
def test_every_point_of_a_real_profile_comes_back_and_longer_contexts_take_longer() -> None:
    profile = read_layer_profile(REAL, 1)
    attention = Attention(profile.attention, profile.uneven)
    assert len(profile.attention) == 8643, "wc -l attention.csv, less its header"
    alone_ns = {timing[:2]: timing.ns for timing in profile.attention if not timing.n_decodes}
    for timing in profile.attention:
        before = (timing.key_halves - timing.n_new) // 2
        n, kv = timing.n_decodes, timing.context_tokens
        work = prompts((timing.n_new, before), n_decodes=n, context=kv) if timing.n_new else decodes(n, kv)
        least_ns = alone_ns[timing[:2]] if timing.n_new else 0  # noise: a few were faster with decodes beside them
        assert attention.ns(work, 0, n) == pytest.approx(max(least_ns, timing.ns), abs=4)
    for n in (1, 5, 32, 100):
        times = [attention.ns(decodes(n, kv), 0, n) for kv in range(16, 16384, 97)]
        assert all(before <= after for before, after in pairwise(times))


def test_kernels_that_are_launched_ahead_do_not_show_how_they_begin(made: LayerProfile) -> None:
    # By hand: two norms, rotary and activation take 2 us, which is what beginning takes; each GEMM has 2 us less,
    # attention, which is two kernels, 4 us; the head has 30 and 10 us left, embedding and last norm nothing.
    alone, ahead = ProfileModel(made), ProfileModel(made, graphs=AHEAD)
    work = decodes(4, 64)
    assert alone.layer_ns(work) == OTHERS_NS + 1000 * decode_us(4, 64)
    assert ahead.layer_ns(work) == LAUNCHED_AHEAD_NS + 1000 * decode_us(4, 64) - 4000
    assert alone.head_ns(work) == 2000 + 2000 + 32_000 + 12_000
    assert ahead.head_ns(work) == 30_000 + 10_000
    assert ahead.head_ns(Work(128, 1, 128 * 129 // 2, 0, 0, 0)) == 0, "nothing is sampled"


def test_several_prompts_take_what_each_takes_and_begin_once(made: LayerProfile) -> None:
    model = ProfileModel(made)
    two = model.layer_ns(prompts((32, 0), (32, 0))) - OTHERS_NS
    least_us = prompt_us(16, 0)
    assert two == pytest.approx(1000 * (2 * prompt_us(32, 0) - least_us), rel=0.01)
    one = model.layer_ns(prompts((64, 0))) - OTHERS_NS
    assert two < one, "the tokens of shorter prompts have fewer keys"


def test_repetitions_of_a_decode_step_are_the_steps_they_stand_for(made: LayerProfile) -> None:
    model = ProfileModel(made, graphs=AHEAD)
    repeated = model.repeated_layer_ns(decodes(3, 40), 20)
    assert list(repeated) == [model.layer_ns(decodes(3, 40 + nth)) for nth in range(20)]


def test_small_steps_are_padded_to_what_graphs_there_are(tmp_path: Path) -> None:
    write_profile(tmp_path)
    dense = tmp_path / "layer_profile" / "tp1" / "dense.csv"
    dense.write_text(dense.read_text().replace("down_proj,128,10", "down_proj,128,137"))  # 9 us + 1 us a token
    profile = read_layer_profile(tmp_path / "layer_profile", 1)
    graphs = Graphs(decode_sizes=(1, 2, 8), other_sizes=(64,))
    model = ProfileModel(profile, graphs=graphs)
    base_ns = OTHERS_NS - 10_000

    def down_ns(work: Work, attention_us: float) -> float:
        return model.layer_ns(work) - base_ns - 1000 * attention_us

    assert down_ns(decodes(3, 64), decode_us(3, 64)) == 17_000, "run as 8"
    assert down_ns(decodes(9, 64), decode_us(9, 64)) == 18_000, "no graph is as large"
    assert down_ns(prompts((40, 0)), prompt_us(40, 0)) == pytest.approx(73_000, rel=0.01), "run as 64"


def test_contexts_of_different_lengths_are_on_the_way_from_the_mean_to_the_longest(made: LayerProfile) -> None:
    uneven = [UnevenTiming(4, 0, 100, 200, 130), UnevenTiming(4, 0, 100, 300, 160), UnevenTiming(8, 0, 100, 200, 110)]
    attention = Attention(made.attention, uneven)
    mean_ns, longest_ns = 1000 * decode_us(4, 64), 1000 * decode_us(4, 256)
    assert attention.ns(decodes(4, 64), 64, 4) == mean_ns, "all as long"
    assert attention.ns(decodes(4, 64), 256, 4) == pytest.approx(mean_ns + 0.3 * (longest_ns - mean_ns))
    assert attention.ns(decodes(4, 64), 256, 8) == pytest.approx(mean_ns + 0.1 * (longest_ns - mean_ns)), "set up for 8"
    unmeasured = Attention(made.attention, [])
    assert unmeasured.ns(decodes(4, 64), 256, 4) == pytest.approx(mean_ns + 0.03 * (longest_ns - mean_ns), abs=1)
    assert unmeasured.ns(decodes(4, 64), 0, 4) == mean_ns, "nobody knows how long the longest is"


@given(st.integers(1, 300), st.integers(0, 3000))
def test_the_share_of_the_longest_is_a_share(n_decodes: int, n_new: int) -> None:
    shares = Shares([UnevenTiming(2, 0, 10, 20, 9), UnevenTiming(32, 0, 10, 20, 25), UnevenTiming(8, 64, 10, 20, 12)])
    assert 0 <= shares.of(n_decodes, n_new) <= 1


def test_ranks_add_up_their_parts_twice_a_layer(made: LayerProfile) -> None:
    # By hand: 4 tokens x 100 x 2 bytes over 2 ranks at 1 GB/s: a turn is 400 ns and 50 of latency, a sum two turns.
    links = Links(n_ranks=2, bytes_per_s=10**9, latency_ns=50, hidden=100, vocab=1000)
    with_links, without = ProfileModel(made, links=links), ProfileModel(made)
    work = decodes(4, 64)
    assert with_links.layer_ns(work) - without.layer_ns(work) == 2 * 2 * 450
    assert with_links.head_ns(work) - without.head_ns(work) == 2 * 450 + 4 * 1000 * 2 // 2 + 50


def test_experts_are_as_many_as_the_tokens_are_routed_to(tmp_path: Path) -> None:
    # 8 experts, 2 a token (moe.csv: the most, and those of one token): one token uses 2, very many all 8.
    write_profile(tmp_path, experts=True)
    model = ProfileModel(read_layer_profile(tmp_path / "layer_profile", 1))
    others_ns = OTHERS_NS - 20_000 - 2000 - 10_000
    assert model.layer_ns(decodes(1, 16)) == others_ns + 1000 * decode_us(1, 16) + 11_000
    assert model.layer_ns(prompts((64, 0))) == pytest.approx(others_ns + 1000 * prompt_us(64, 0) + 29_000, abs=2)


def test_a_profile_without_its_mlp_is_refused(tmp_path: Path) -> None:
    write_profile(tmp_path, experts=True)
    (tmp_path / "layer_profile" / "tp1" / "moe.csv").unlink()
    with pytest.raises(ValueError, match=r"neither down_proj in dense.csv nor moe.csv"):
        ProfileModel(read_layer_profile(tmp_path / "layer_profile", 1))


def test_a_profile_of_another_model_is_refused(made: LayerProfile) -> None:
    shape = read_shape("llama_3_8b")
    assert profiled(made, shape).layer_ns(decodes(1, 16)), "it does not say of what model it is"


@pytest.mark.skipif(not REAL.is_dir(), reason="the RTX 4090's profile is not here")
def test_a_real_profile_serves_the_model_that_it_is_of() -> None:
    profile = read_layer_profile(REAL, 1)
    assert profiled(profile, read_shape("llama_3_8b")).layer_ns(decodes(16, 1024)) == pytest.approx(
        491_721 + 99_259, abs=10
    ), "dense.csv at 16 tokens, norms twice, and attention.csv at 0,0,16,1024"
    with pytest.raises(ValueError, match="vocab_size 128256 there, 32000 here"):
        profiled(profile, read_shape("llama_2_7b"))


def test_ordinary_runs_take_a_layer_profile_for_their_compute_table(tmp_path: Path) -> None:
    write_profile(tmp_path)
    constants = asdict(read_machine(CONF / "hardware" / "h200.yaml"))
    link = LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1)
    bandwidth, flops = constants.pop("hbm_bytes_per_s"), constants.pop("flops_per_s")
    gpu = HardwareProfile(name="h200", hbm_bytes=1, hbm_bytes_per_s=bandwidth, page_bytes=1, link=link)
    tables = tmp_path / "layer_profile"
    shapes = [read_shape("llama_3_8b")]
    (model,) = compute_models(shapes, gpu, roofline=constants, flops_per_s=flops, tables=tables)
    assert model.layer_ns(decodes(4, 64)) == OTHERS_NS + 1000 * decode_us(4, 64)


def test_attention_without_prompts_refuses_a_prompt() -> None:
    attention = Attention([AttentionTiming(0, 0, 1, 16, 100)], [])
    with pytest.raises(ValueError, match="no prompts"):
        attention.ns(prompts((16, 0)), 0, 0)
