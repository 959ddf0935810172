"""Ranks as a person starts them: processes that end together, however one of them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor.factory import open_backend
from policies.engine import Outcome
from policies.memory.ops import Lend
from tests.conftest import REPOSITORY
from tests.engine.recorder import Recorder
from tests.executor.backend.replay import Renamed, replay
from tests.executor.backend.stage import (
    Record,
    RecordedBackend,
    Setting,
    Size,
    burst,
    make_engine,
    open_books,
    open_stage,
    plan_of,
)
from traces.results.folder import read_json, read_run

RUN = [sys.executable, "-m", "executor", "run"]
COMMAND = [*RUN, "+experiment=exec_tiny", "backend.ranks=2", "compare=[mirage]"]
LONG = [*COMMAND, "workload.duration_s=60"]
LONG_WITH_EXPERTS = [
    *(*RUN, "+experiment=exec_vamp_tiny", "mix=exec_vamp_tiny_x2", "compare=[vamp]"),
    "sessions.exec_tiny.n_sessions=10000",
]
both = pytest.mark.parametrize("command", [LONG, LONG_WITH_EXPERTS], ids=["dense", "experts"])
WITHIN_S = 60


def test_an_experiment_runs_on_two_ranks(tmp_path: Path) -> None:
    command = [*COMMAND, f"output.folder={tmp_path}", "workload.duration_s=0.5"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (name,) = read_json(tmp_path / "experiment.json")["runs"]
    tables = read_run(tmp_path / name)
    assert set(tables.columns("requests", ["outcome"])["outcome"].tolist()) == {"finished"}
    assert "lend_inactive" in tables.columns("decisions", ["reason"])["reason"].tolist()


SETTINGS = [
    pytest.param(Setting(size=Size(hidden=64, head_dim=16, dtype_bytes=8), n_ranks=2), 1e-12, id="memfd"),
    # bfloat16 loses up to 2^-8 at each addition
    pytest.param(Setting(world="cuda", n_ranks=2), 0.05, id="cuda", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("setting", "close"), SETTINGS)
def test_processes_that_serve_and_lend_compute_what_one_does(setting: Setting, close: float) -> None:
    if setting.world == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("there are no two GPUs")
    record, names = served_by_processes(setting), Renamed()
    assert any(isinstance(op, Lend) for op in record.ops)
    entries = [names.entry(entry) for entry in record.entries]
    with open_stage(replace(setting, n_ranks=1, n_base_blocks=240)) as stage:
        for ours, asked in zip(replay(stage, entries), record.asked, strict=True):
            assert float((ours - asked.hidden).abs().max() / asked.hidden.abs().max()) < close


def served_by_processes(setting: Setting) -> Record:
    """What rank 0 was asked and computed."""
    record, (ledger, lanes) = Record(), open_books(setting)
    with open_backend(setting.world, plan_of(setting, ledger, lanes), watch=record.watch) as backend:
        engine = make_engine(setting, ledger, lanes, RecordedBackend(backend, record), Recorder())
        assert engine.run(iter(burst())) is Outcome.DONE
    return record


@contextmanager
def serving(folder: Path, command: list[str], *overrides: str) -> Generator[tuple[subprocess.Popen[str], int]]:
    """A run that goes on for long, and the process of its rank 1."""
    command = [*command, f"output.folder={folder}", *overrides]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + WITHIN_S
        while not (followers := [each for each in followers_of(process.pid) if has_memory(each)]):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s, "no run began"
            time.sleep(0.05)
        time.sleep(4)  # both have loaded their weights, and serve
        yield process, followers[0]
    finally:
        process.kill()
        process.communicate()


def followers_of(pid: int) -> list[int]:
    """Processes that a process has started to be ranks."""
    children = read_of(pid, f"task/{pid}/children").split()
    return [int(child) for child in children if "spawn_main" in read_of(int(child), "cmdline")]


def read_of(pid: int, name: str) -> str:
    """What the system tells of a process; nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def has_memory(pid: int) -> bool:
    """Whether a process has opened its device."""
    return "memfd:hbm" in read_of(pid, "maps")


def is_gone(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    state = read_of(pid, "stat").rpartition(")")[2].split()
    return not state or state[0] == "Z"


def ended(process: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    """What a run that could not go on told, and why its results say that they are incomplete."""
    _, told = process.communicate(timeout=WITHIN_S)
    (header,) = (json.loads(path.read_text()) for path in folder.glob("*/run.json"))
    assert header["state"] == "incomplete"
    return told, header["reason"]


@both
def test_a_rank_that_dies_ends_the_run_at_once_and_marks_it_incomplete(tmp_path: Path, command: list[str]) -> None:
    with serving(tmp_path, command) as (process, follower):
        os.kill(follower, signal.SIGKILL)
        began_s = time.monotonic()
        told, _ = ended(process, tmp_path)
        assert time.monotonic() - began_s < 30  # the timeout would be 60
    assert process.returncode == 2
    assert told.startswith("python -m executor run: rank 1 has ended with code -9; the run cannot go on")
    assert told.count("\n") == 1


@both
def test_a_rank_that_is_stuck_ends_the_run_in_the_time_that_is_set(tmp_path: Path, command: list[str]) -> None:
    with serving(tmp_path, command, "backend.rank_timeout_s=4") as (process, follower):
        os.kill(follower, signal.SIGSTOP)
        began_s = time.monotonic()
        told, _ = ended(process, tmp_path)
        assert 2 < time.monotonic() - began_s < 30
        assert is_gone(follower)
    assert process.returncode == 2
    assert "the run cannot go on" in told
    assert told.count("\n") == 1


@both
def test_ctrl_c_ends_all_ranks(tmp_path: Path, command: list[str]) -> None:
    with serving(tmp_path, command) as (process, follower):
        os.kill(process.pid, signal.SIGINT)
        _, reason = ended(process, tmp_path)
        assert is_gone(follower)
    assert process.returncode == 130
    assert reason == "KeyboardInterrupt"


@both
def test_without_rank_0_no_other_goes_on(tmp_path: Path, command: list[str]) -> None:
    with serving(tmp_path, command) as (process, follower):
        process.kill()
        deadline_s = time.monotonic() + 30
        while not is_gone(follower):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["backend.ranks=3"], "model tiny-opt: n_heads="),
        (["backend=sim", "backend.ranks=2"], "backend.ranks=2: the simulator divides no dense model; run the executor"),
        (["backend.ranks=0"], "backend.ranks=0 must be at least 1"),
        (["backend.tier=peer"], "backend.peer=1: GPU 1 serves; name another one"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, overrides: list[str], told: str) -> None:
    command = [*COMMAND, f"output.folder={tmp_path / 'none'}", *overrides]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
