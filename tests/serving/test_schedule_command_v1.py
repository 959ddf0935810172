from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.schedule import main

TRACE = "id,arrival,prompt,output_len\n7,0.5,a:20|b:6,3\n3,0.25,c:5,2\n"


def _command(folder: Path, *flags: str) -> list[str]:
    (folder / "case.csv").write_text(TRACE, encoding="utf-8")
    files = ["--trace", str(folder / "case.csv"), "--out", str(folder / "out.jsonl")]
    return ["--scheduler", "vllm_v1", *files, "--num-blocks", "20", *flags]


def _records(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def test_asynchronously_two_steps_are_composed_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(tmp_path, "--step-time", "0.001,0,0")) == 0
    assert [step["t"] for step in _records(tmp_path, "step")] == [
        250_000_000,
        250_000_000,
        500_000_000,
        500_000_000,
        501_000_000,
    ]
    assert [(each["id"], each["first_token"]) for each in _records(tmp_path, "req")] == [(7, 501000000), (3, 251000000)]
    assert capsys.readouterr().out == f"2 requests, 5 steps, 0 preemptions, 0.503 s: {tmp_path / 'out.jsonl'}\n"


@pytest.mark.parametrize(("flags", "caches"), [((), True), (("--mamba-groups", "3"), False)])
def test_caching_is_on_by_default_but_for_hybrid_models(flags: tuple[str, ...], caches: bool, tmp_path: Path) -> None:
    assert main(_command(tmp_path, *flags)) == 0
    assert _records(tmp_path, "meta")[0]["prefix_caching"] is caches


def test_a_reserved_prompt_that_never_fits_is_reported_as_stuck(tmp_path: Path) -> None:
    # 26 tokens need 2 blocks of 16; one of 2 is the placeholder.
    flags = ["--num-blocks", "2", "--max-num-batched-tokens", "8", "--max-steps", "40"]
    assert main(_command(tmp_path, *flags, "--reserve-full-isl", "on")) == 0
    assert [(each["running"], each["waiting"]) for each in _records(tmp_path, "stuck")] == [([], [7])]
    assert len(_records(tmp_path, "step")) == 2  # those of request 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-cpu-blocks", "1"], "--num-cpu-blocks is an option of vllm_v0, not of vllm_v1; leave it out"),
        (["--leaps", "on"], "--leaps is an option of vllm_v0, not of vllm_v1; leave it out"),
        (["--num-blocks", "1"], "n_base=1 blocks must be at least 2: block 0 is a placeholder"),
        (["--chunked", "off", "--max-model-len", "4096"], "max_num_batched_tokens=2048 is below max_model_len=4096"),
        (["--mamba-groups", "-1"], "n_state_groups=-1 must not be negative"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m sim schedule: {message}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_options_of_v1_are_refused_for_v0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = _command(tmp_path, "--mamba-groups", "3")
    assert main([each.replace("vllm_v1", "vllm_v0") for each in command]) == 2
    assert "--mamba-groups is an option of vllm_v1, not of vllm_v0" in capsys.readouterr().err
