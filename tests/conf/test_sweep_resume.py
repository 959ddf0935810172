"""A sweep that was stopped goes on where it was, and comes out as one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from conf.alone import alone_in
from conf.carry_out import Place, complete
from conf.fingerprint import folder_name
from tests.conf.test_build import built
from tests.conftest import REPOSITORY
from traces.results.folder import is_complete

SWEEP = [
    "+experiment=demo",
    "workload.duration_s=3",
    "output.figures=false",
    "+grid.seed=[0,1,2,3]",
    "+grid.policy.mirage.max_remapped_fraction=[0.05,0.5]",
]
N_RUNS = 12  # four seeds of the baseline, twice as many of mirage


def sweep(folder: Path) -> subprocess.Popen[str]:
    """The sweep as a user starts it, in a session of its own, as a terminal would."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim", "run", *SWEEP, f"output.folder={folder}"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def headers(folder: Path) -> dict[str, str]:
    """run.json of each complete run, by the name of its folder."""
    runs = [path for path in folder.glob("*/run.json") if is_complete(path.parent)]
    return {path.parent.name: path.read_text() for path in runs}


def outcome(folder: Path) -> dict[str, bytes]:
    """All that a sweep leaves and that says nothing of when it ran."""
    patterns = ("report.txt", "runs.csv", "*/*.parquet", "*/summary.json")
    kept = [path for pattern in patterns for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Where a short run is to go."""
    (run,) = built("+experiment=demo", "compare=[recompute]", "workload.duration_s=1").runs
    return Place(run=run, folder=tmp_path / folder_name(run))


def test_a_sweep_that_ctrl_c_stopped_repeats_nothing_and_comes_out_the_same(tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = sweep(stopped)
    while len(headers(stopped)) < N_RUNS // 3 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    kept = headers(stopped)
    told = f"{len(kept)} of {N_RUNS} runs are complete; the same command with output.folder={stopped} does the others"
    assert (process.returncode, err) == (130, f"python -m sim run: interrupted: {told}\n")
    assert not outcome(stopped).keys() & {"report.txt", "runs.csv"}

    resumed = sweep(stopped)
    out, err = resumed.communicate()
    assert (resumed.returncode, err) == (0, "")
    assert f"{len(kept)} of {N_RUNS} runs are there already" in out
    assert len(headers(stopped)) == N_RUNS
    assert headers(stopped).items() >= kept.items()  # not even begun again

    sweep(whole).communicate()
    assert outcome(stopped) == outcome(whole)


def test_a_complete_run_is_left_alone(place: Place) -> None:
    complete(place)
    before = {path: path.stat().st_mtime_ns for path in place.folder.iterdir()}
    complete(place)
    assert {path: path.stat().st_mtime_ns for path in place.folder.iterdir()} == before


@pytest.mark.parametrize("state", ["running", "incomplete"])
def test_what_did_not_end_well_is_done_again(place: Place, state: str) -> None:
    complete(place)
    whole = outcome(place.folder.parent)
    header = place.folder / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "state": state}))
    (place.folder / "steps.parquet").rename(place.folder / "steps.part00000.parquet")
    complete(place)
    assert is_complete(place.folder)
    assert outcome(place.folder.parent) == whole


def test_a_folder_in_which_another_works_is_waited_for(place: Place) -> None:
    waiting = Thread(target=complete, args=[place])
    with alone_in(place.folder):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert not (place.folder / "run.json").exists()
    waiting.join()
    assert is_complete(place.folder)


def test_results_of_another_program_are_not_taken_for_these(place: Place, tmp_path: Path) -> None:
    complete(place)
    other = replace(place.run, config={**place.run.config, "seed": 1})
    assert not is_complete(tmp_path / folder_name(other))
