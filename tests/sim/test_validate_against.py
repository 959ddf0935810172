from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf.against import size_of
from conf.cli import Refused
from conf.validate import main
from policies.types import NS_PER_S
from sim.validation.replay import replay
from tests.sim.servers import (
    ENGINE_S,
    HEAD_US,
    LAUNCHED_AHEAD_NS,
    MODEL,
    N_LAYERS,
    decode_us,
    logged,
    meta,
    prompt_us,
    write_csv,
    write_profile,
    write_run,
    write_trace,
)
from traces.measured.layer_profile import read_layer_profile
from traces.measured.server_log import read_server_run

GROUND = Path(__file__).parents[3] / "shared" / "data" / "groundtruth" / "rtx4090_llama31_8b"

HEAD_S = sum(us - 2 for us in HEAD_US.values()) / 1e6


def step_s(attention_us: float) -> float:
    """A step of the made-up server that samples, kernel behind kernel."""
    return N_LAYERS * (LAUNCHED_AHEAD_NS + 1000 * attention_us - 4000) / 1e9 + HEAD_S


FIRST_S = step_s(prompt_us(32, 0))
LAST_S = FIRST_S + step_s(decode_us(1, 33)) + step_s(decode_us(1, 34))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server that serves one request of 32 tokens and 3 of output: a prompt step and two decodes."""
    write_profile(tmp_path)
    return write_run(tmp_path, [logged(0, 32, 3, 2.0, 2 + FIRST_S, 2 + LAST_S)])


def run(*arguments: object) -> int:
    return main(["--against", *map(str, arguments)])


def figures(out: Path) -> dict[str, Any]:
    return {each["metric"]: each for each in json.loads((out / "validate.json").read_text())["figures"]}


def test_a_server_whose_steps_are_added_up_by_hand_is_replayed_without_error(folder: Path, tmp_path: Path) -> None:
    assert run(folder, "--out", tmp_path / "out", "--tolerance", 0.01) == 0
    its = figures(tmp_path / "out")
    assert its["ttft_mean"]["simulated"] == pytest.approx(FIRST_S, rel=1e-5)
    assert its["latency_p99"]["simulated"] == pytest.approx(LAST_S, rel=1e-5)
    assert its["tpot_p50"]["simulated"] == pytest.approx(1000 * (LAST_S - FIRST_S) / 2, rel=1e-5)
    assert all(abs(each["error"]) < 1e-4 for each in its.values())


def test_a_server_that_was_slower_is_out_of_tolerance(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder, [logged(0, 32, 3, 2.0, 2 + 1.1 * FIRST_S, 2 + 1.1 * LAST_S)])
    assert run(folder) == 1
    assert capsys.readouterr().out.count("OUT OF TOLERANCE") == 3, "TTFT, TPOT and latency"
    assert run(folder, "--tolerance", "15") == 0
    assert run(folder, "--tolerance", "15", "ttft_p99=5") == 1


def test_a_request_that_comes_during_a_step_is_computed_behind_the_one_that_is_composed(tmp_path: Path) -> None:
    # By hand: request 1 comes during the prompt step of request 0, behind which a decode is composed already; it is
    # taken in when the prompt step ends, and computed together with the second decode.
    write_profile(tmp_path)
    both_s = step_s(prompt_us(32, 0) + decode_us(1, 34) - 10)
    first_1_s = FIRST_S + step_s(decode_us(1, 33)) + both_s
    lines = [logged(0, 32, 3, 2.0, 2 + FIRST_S, 2 + first_1_s), logged(1, 32, 1, 2.0002, 2 + first_1_s, 2 + first_1_s)]
    write_run(tmp_path, lines)
    assert run(tmp_path, "--tolerance", 0.05) == 0


def test_a_replay_of_what_a_replay_came_to_has_no_error(tmp_path: Path) -> None:
    write_profile(tmp_path)
    lines = [logged(n, 16 + 13 * n % 90, 5 + n % 40, 1 + 0.004 * n, 900, 900) for n in range(40)]
    few = meta(kv_cache={"num_gpu_blocks": 33, "block_size": 16})
    its = read_server_run(write_run(tmp_path, lines, few))
    came = replay(its, read_layer_profile(tmp_path / "layer_profile", 1), size_of(MODEL, None))
    assert came.n_preemptions > 0, "32 blocks are few for 8 requests"
    first_s = 1.0
    for line, served in zip(lines, came.requests, strict=True):
        line["first_token_ts"] = ENGINE_S + first_s + served.first_token_ns / NS_PER_S
        line["last_token_ts"] = ENGINE_S + first_s + served.last_token_ns / NS_PER_S
    write_run(tmp_path, lines, few)
    assert run(tmp_path, "--tolerance", 0.001) == 0


def test_prompts_that_begin_alike_are_computed_once(tmp_path: Path) -> None:
    write_profile(tmp_path)
    write_run(tmp_path, [logged(0, 64, 2, 1.0, 900, 900), logged(1, 64, 2, 2.0, 900, 900)])
    size = size_of(MODEL, None)
    profile = read_layer_profile(tmp_path / "layer_profile", 1)
    assert replay(read_server_run(tmp_path), profile, size).n_hits == 0, "nobody knows what they say"
    write_trace(tmp_path, [range(64), [*range(48), *range(900, 916)]], [2, 2])
    assert replay(read_server_run(tmp_path), profile, size).n_hits == 48


def test_every_engine_serves_its_part_of_the_requests(tmp_path: Path) -> None:
    write_profile(tmp_path)
    its = meta(engine_kwargs={**meta()["engine_kwargs"], "data_parallel_size": 2})
    write_run(tmp_path, [logged(n, 32, 3, 2.0, 2 + FIRST_S, 2 + LAST_S) for n in (0, 1)], its)
    assert run(tmp_path, "--tolerance", 0.01) == 0, "each as if it were alone"


def test_ranks_need_a_link_between_them(tmp_path: Path) -> None:
    write_profile(tmp_path, n_ranks=2)
    its = meta(engine_kwargs={**meta()["engine_kwargs"], "tensor_parallel_size": 2})
    write_run(tmp_path, [logged(0, 32, 3, 2.0, 2 + FIRST_S, 2 + LAST_S)], its)
    with pytest.raises(Refused, match=r"config.json has no link_bw \(GB/s\) and link_latency \(ns\)"):
        run(tmp_path)
    (tmp_path / "config.json").write_text('{"link_bw": 16, "link_latency": 1000}')
    assert run(tmp_path) == 1, "sums take longer than nothing"


def test_engines_that_share_experts_step_together(tmp_path: Path) -> None:
    # By hand: 8 experts, 2 a token, in place of the MLP (gate-up 18 us, activation 0, down 8). The 64 tokens of both
    # engines use all of them: 29 us. 2 tokens use 8 (1 - (3/4)^2) = 3.5, so 4: a third of the way from 11 us (one
    # token, which has 2) to 17 (four tokens that have 4). 2 us of either is how the kernel begins.
    write_profile(tmp_path, experts=True)
    its = meta(engine_kwargs={**meta()["engine_kwargs"], "data_parallel_size": 2})
    experts_s = [N_LAYERS * (us - 2 - 18 - 8) / 1e6 for us in (29, 13)]
    first_s = FIRST_S + experts_s[0]
    last_s = first_s + LAST_S - FIRST_S + 2 * experts_s[1]
    write_run(tmp_path, [logged(n, 32, 3, 2.0, 2 + first_s, 2 + last_s) for n in (0, 1)], its)
    assert run(tmp_path, "--tolerance", 0.01) == 0


def test_experts_are_replayed(tmp_path: Path) -> None:
    write_profile(tmp_path, experts=True)
    write_run(tmp_path, [logged(0, 32, 3, 2.0, 2.001, 2.003)])
    assert run(tmp_path, "--tolerance", "500") == 0


def test_the_load_over_time_is_compared(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Started at 0 s, the request ran from 2 s on; at 2.002 s it has 34 tokens, 3 of the 64 blocks.
    write_csv(
        folder / "timeseries.csv", "t,running,waiting,kv_cache_pct", [(1, 0, 0, 0), (2.002, 1, 0, 4.69), (3, 0, 0, 0)]
    )
    assert run(folder, "--out", tmp_path / "out", "--tolerance", "kv=0.1", "running=0", "waiting=0") == 0
    series = {each["name"]: each for each in json.loads((tmp_path / "out" / "validate.json").read_text())["series"]}
    assert series["kv"]["real"] == pytest.approx(4.69 / 3)
    assert series["kv"]["most_off"] < 0.01
    write_csv(folder / "timeseries.csv", "t,running,waiting,kv_cache_pct", [(1, 0, 0, 0), (2.002, 1, 3, 50)])
    assert run(folder, "--tolerance", "kv=5", "waiting=2") == 1
    assert capsys.readouterr().out.count("OUT OF TOLERANCE") == 1, "KV by 23 points; waiting by 1.5 requests"


def nothing(folder: Path) -> None:
    assert folder.is_dir()


def unlink(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


WRONG: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "no profile": (lambda folder: (folder / "layer_profile").rename(folder / "x"), (), "tp1 is not there"),
    "no dense.csv": (unlink("layer_profile/tp1/dense.csv"), (), "dense.csv: No such file"),
    "no requests": (unlink("requests.jsonl"), (), "requests.jsonl is not there"),
    "broken requests": (lambda folder: (folder / "requests.jsonl").write_text("{\n"), (), "requests.jsonl:1: no JSON"),
    "broken meta": (lambda folder: (folder / "meta.json").write_text("{"), (), "meta.json: no JSON"),
    "no tolerance": (nothing, ("--tolerance", "ttft_mean=much"), "--tolerance ttft_mean=much must be"),
    "unknown figure": (nothing, ("--tolerance", "tbt_p50=3"), "no figure tbt_p50; there are ttft_mean"),
    "negative": (nothing, ("--tolerance", "-3"), "must be PERCENT or NAME=PERCENT"),
    "no layers": (nothing, ("--layers", "0"), "--layers 0 must be at least 1"),
    "a setting": (nothing, ("--explain",), "goes with --tolerance, --layers and --out only"),
    "too long": (
        lambda folder: write_run(folder, [logged(0, 1000, 200, 2.0, 3.0, 4.0)]),
        (),
        "a request of 1200 tokens exceeds max_model_len=1024",
    ),
    "too large": (
        lambda folder: write_run(
            folder, [logged(0, 400, 9, 2.0, 3.0, 4.0)], meta(kv_cache={"num_gpu_blocks": 9, "block_size": 16})
        ),
        (),
        "1 requests can never run in 9 blocks",
    ),
    "unknown model": (
        lambda folder: write_run(folder, [logged(0, 32, 3, 2.0, 3.0, 4.0)], meta(model="nobody/nothing-7b")),
        (),
        "nobody/nothing-7b: its number of layers is not known; give --layers N",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_one_line(mistake: str, folder: Path) -> None:
    change, arguments, message = WRONG[mistake]
    change(folder)
    with pytest.raises(Refused) as refused:
        run(folder, *arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_layers_of_an_unknown_model_can_be_given(folder: Path) -> None:
    write_run(folder, [logged(0, 32, 3, 2.0, 2 + FIRST_S, 2 + LAST_S)], meta(model="nobody/nothing-7b"))
    assert run(folder, "--layers", N_LAYERS, "--tolerance", 0.01) == 0


def test_neither_a_run_nor_a_server_is_refused() -> None:
    with pytest.raises(Refused, match="name the folder of a run, or --against DIR"):
        main([])


@pytest.mark.parametrize(
    ("name", "n_layers"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 32),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 48),
        ("/models/Qwen3-32B/", 64),
        ("mistralai/Mistral-7B-Instruct-v0.3", 32),
        ("qwen/qwen3-8b-base", 36),
    ],
)
def test_a_model_is_known_by_its_name_however_it_was_trained(name: str, n_layers: int) -> None:
    assert size_of(name, None).n_layers == n_layers


@pytest.mark.skipif(not GROUND.is_dir(), reason="the RTX 4090 run is not here")
def test_the_rtx_4090_run_is_within_what_was_asked_for(tmp_path: Path) -> None:
    statistics = ("mean", "p50", "p90", "p99")
    allowed = [
        f"{name}_{each}={share}" for name, share in (("ttft", 3), ("tpot", 2), ("latency", 3)) for each in statistics
    ]
    assert run(GROUND, "--out", tmp_path, "--tolerance", *allowed, "kv=5") == 0
    assert len(figures(tmp_path)) == 12
