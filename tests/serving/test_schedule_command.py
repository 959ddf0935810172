from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.schedule import main

TRACE = "id,arrival,prompt,output_len\n7,0.5,a:10|b:6,3\n3,0.25,c:5,2\n"


def _command(folder: Path, *flags: str, trace: str = TRACE) -> list[str]:
    (folder / "case.csv").write_text(trace, encoding="utf-8")
    files = ["--trace", str(folder / "case.csv"), "--out", str(folder / "out.jsonl")]
    return ["--scheduler", "vllm_v0", *files, "--num-blocks", "20", *flags]


def _records(folder: Path, kind: str) -> list[dict[str, object]]:
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["type"] == kind]


def test_the_log_has_a_record_for_every_step_and_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(tmp_path, "--async-output", "off", "--step-time", "0.001,0,0")) == 0
    assert [step["t"] for step in _records(tmp_path, "step")] == [
        250_000_000,
        251_000_000,
        500_000_000,
        501_000_000,
        502_000_000,
    ]
    assert [(each["id"], each["first_token"]) for each in _records(tmp_path, "req")] == [(7, 501000000), (3, 251000000)]
    assert _records(tmp_path, "end")[0]["finished"] == 2
    assert capsys.readouterr().out == f"2 requests, 5 steps, 0 preemptions, 0.503 s: {tmp_path / 'out.jsonl'}\n"


def test_flags_override_the_file_of_options(tmp_path: Path) -> None:
    args = tmp_path / "case.args.json"
    args.write_text('{"num_blocks": 30, "block_size": 8, "prefix_caching": true}', encoding="utf-8")
    assert main(_command(tmp_path, "--args", str(args))) == 0
    (meta,) = _records(tmp_path, "meta")
    assert (meta["num_blocks"], meta["block_size"], meta["prefix_caching"]) == (20, 8, True)


def test_max_model_len_0_depends_on_chunking(tmp_path: Path) -> None:
    lengths: list[object] = []
    for chunked in ("on", "off"):
        assert main(_command(tmp_path, "--chunked", chunked, "--max-num-batched-tokens", "99")) == 0
        lengths.append(_records(tmp_path, "meta")[0]["max_model_len"])
    assert lengths == [131072, 99]


def test_what_can_never_run_is_reported_as_stuck(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # With caching the budget is rounded down to whole blocks of 16: nothing of 15 tokens is left.
    flags = ["--chunked", "on", "--prefix-caching", "on", "--max-num-batched-tokens", "15"]
    assert main(_command(tmp_path, *flags)) == 0
    assert [(each["running"], each["waiting"]) for each in _records(tmp_path, "stuck")] == [([], [3, 7])]
    assert "2 left (requests are left that can never run)" in capsys.readouterr().out


def test_the_limit_of_steps_ends_the_log(tmp_path: Path) -> None:
    assert main(_command(tmp_path, "--max-steps", "2")) == 0
    assert len(_records(tmp_path, "step")) == 2
    assert len(_records(tmp_path, "stuck")) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nonsense", "1"], "unrecognized arguments: --nonsense 1; --help lists the options"),
        (["--block-size", "many"], "argument --block-size: invalid int value: 'many'; --help lists the options"),
        (["--chunked", "maybe"], "argument --chunked: 'maybe' is neither on nor off; --help lists the options"),
        (["--block-size", "0"], "block_tokens=0 must be at least 1"),
        (["--num-blocks", "0"], "num_blocks=0 and max_steps=20000 must be at least 1"),
        (["--step-time", "1,2"], "argument --step-time: '1,2' is not A,B,C in seconds, each at least 0"),
        (["--step-time=-1,2,3"], "argument --step-time: '-1,2,3' is not A,B,C in seconds, each at least 0"),
        (["--leaps", "on", "--prefix-caching", "on"], "leaps=on: the log counts cached blocks at every step"),
        (["--args", "nowhere.json"], "args nowhere.json: [Errno 2] No such file or directory: 'nowhere.json'"),
        (["--trace", "nowhere.csv"], "trace nowhere.csv: [Errno 2] No such file or directory: 'nowhere.csv'"),
        (["--out", "/nowhere/out.jsonl"], "out /nowhere/out.jsonl: No such file or directory"),
        (["--scheduler", "sglang"], "argument --scheduler: invalid choice: 'sglang'"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m sim schedule: {message}")
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case.csv"]


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("id,arrival,prompt\n", "no column output_len; the columns are id, arrival, prompt, output_len"),
        ("id,arrival,prompt,output_len\n1,0,a:5,2\n1,0,a:5,2\n", "line 3: request 1 is there twice; mend the line"),
        ("id,arrival,prompt,output_len\n1,soon,a:5,2\n", "line 2: could not convert string to float: 'soon'"),
        ("id,arrival,prompt,output_len\n1,-1,a:5,2\n", "line 2: arrival -1 s is before the start"),
        ("id,arrival,prompt,output_len\n1,nan,a:5,2\n", "line 2: cannot convert float NaN to integer"),
        ("id,arrival,prompt,output_len\n1,0,a5,2\n", "line 2: prompt piece 'a5' is not NAME:N"),
        ("id,arrival,prompt,output_len\n1,0,a:0,2\n", "line 2: request 1: 0 prompt and 2 declared output tokens"),
        ("id,arrival,prompt,output_len\n1,0,a:5\n", "line 2: "),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(
    trace: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(tmp_path, trace=trace)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_an_unknown_option_in_the_file_is_named_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = tmp_path / "case.args.json"
    args.write_text('{"num_block": 30}', encoding="utf-8")
    assert main(_command(tmp_path, "--args", str(args))) == 2
    assert f"args {args}: unrecognized arguments: --num-block=30" in capsys.readouterr().err


def test_a_log_that_was_there_survives_a_mistake(tmp_path: Path) -> None:
    # Swapping without host blocks fails in the middle of the run.
    flags = ["--num-blocks", "3", "--preemption-mode", "swap", "--step-time", "1,0,0"]
    trace = "id,arrival,prompt,output_len\n0,0,a:16,40\n1,0,b:16,40\n"
    command = _command(tmp_path, *flags, trace=trace)
    (tmp_path / "out.jsonl").write_text("precious\n", encoding="utf-8")
    assert main(command) == 2
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == "precious\n"
