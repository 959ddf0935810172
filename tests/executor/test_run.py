"""The command as a person calls it: an experiment on real pages, with the simulator's results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from conf.again import again
from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.replays import steps_of
from sim.validation.compare import n_steps
from tests.conftest import REPOSITORY
from traces.results.folder import RunTables, read_json, read_run
from traces.workload.recorded import recorded

COMMAND = [sys.executable, "-m", "executor", "run", "+experiment=exec_tiny"]


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, f"output.folder={folder}", *overrides]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def runs_in(folder: Path) -> dict[str, RunTables]:
    names = read_json(folder / "experiment.json")["runs"]
    tables = [read_run(folder / name) for name in names]
    return {each.info.system: each for each in tables}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_both_policies_finish_every_request(finished: Path) -> None:
    tables = runs_in(finished)
    assert list(tables) == ["recompute", "mirage"]
    for each in tables.values():
        assert each.state == "complete"
        outcomes = each.columns("requests", ["outcome"])["outcome"]
        assert set(outcomes.tolist()) == {"finished"}
        assert len(outcomes) > 50


def test_layers_are_lent_by_the_idle_and_by_the_running_model_and_come_back(finished: Path) -> None:
    decisions = runs_in(finished)["mirage"].columns("decisions", ["changed", "reason"])
    reasons = set(decisions["reason"][decisions["changed"].astype(bool)].tolist())
    assert {"lend_inactive", "lend_active", "revert"} <= reasons, reasons


def test_its_own_step_times_lead_to_its_decisions(finished: Path) -> None:
    for each in runs_in(finished).values():
        run = again(each.info, recorded(each), {"backend": {"world": "sim", "leaps": False}})
        assert len(steps_of(each, run)) == n_steps(each)


def test_with_a_peer_as_the_tier_it_runs_as_well(tmp_path: Path) -> None:
    done = run(tmp_path / "tiny", "backend.tier=peer", "compare=[mirage]", "workload.duration_s=0.5")
    assert done.returncode == 0, done.stderr
    (tables,) = runs_in(tmp_path / "tiny").values()
    assert set(tables.columns("requests", ["outcome"])["outcome"].tolist()) == {"finished"}


def test_results_name_the_device_and_what_ran_on_it(finished: Path) -> None:
    folder = next(iter(runs_in(finished).values())).folder
    header = read_json(folder / "run.json")
    assert "memfd" in header["device"]
    assert {"torch", "python"} <= set(header["versions"])
    assert header["config"]["backend"]["world"] == "memfd"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("backend.vmm=page", "the executor maps a whole layer at once; choose alias or range"),
        ("backend={tier: peer, peer: 0}", "backend.peer=0: GPU 0 serves; name another one"),
        ("parallel.jobs=2", "backend.world=memfd has one device; set parallel.jobs=1"),
        ("mix.models.tiny_opt.share=0.2", "model tiny-opt: 20% of memfd_tiny"),
        ("hardware.page_bytes=100000", "granularity_bytes=100000 must be a multiple of"),
        ("+backend.weights.tiny-opt=nowhere", "nowhere has no config.json"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, override: str, told: str) -> None:
    done = run(tmp_path / "tiny", override)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


MOMENTS = Random("moments")


@pytest.mark.parametrize(
    ("number", "begun", "after_s"),
    [
        (signal.SIGINT, False, 0.0),  # while it imports
        (signal.SIGINT, True, 0.0),  # while it loads
        *((signal.SIGINT, True, MOMENTS.uniform(0.5, 6)) for _nth in range(2)),  # while layers change hands
        (signal.SIGTERM, True, 2.0),
    ],
)
def test_a_signal_ends_a_run_at_once_and_marks_it_incomplete(
    tmp_path: Path, number: signal.Signals, begun: bool, after_s: float
) -> None:
    folder = tmp_path / "tiny"
    command = [*COMMAND, f"output.folder={folder}", "compare=[mirage]", "workload.duration_s=60"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if begun:
            _wait_until_it_begins(folder)
        else:
            _wait_until_it_imports(process.pid)
        time.sleep(after_s)
        os.kill(process.pid, number)
        _, told = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 128 + number, told
    assert told.count("\n") == 1
    assert "interrupted" in told
    headers = [json.loads(path.read_text()) for path in folder.glob("*/run.json")]
    assert len(headers) == begun
    for header in headers:
        assert header["state"] == "incomplete"
        assert header["reason"] == ("KeyboardInterrupt" if number == signal.SIGINT else "KeyboardInterrupt: SIGTERM")


def _wait_until_it_imports(pid: int) -> None:
    """PyTorch is what takes longest, and the command has been entered by then."""
    while "libtorch" not in Path(f"/proc/{pid}/maps").read_text():
        time.sleep(0.01)


def _wait_until_it_begins(folder: Path) -> None:
    """It begins as soon as its folder is there, before anything is loaded."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(folder.glob("*/run.json")):
            return
        time.sleep(0.05)
    raise AssertionError(f"no run began in {folder}")
