"""Sweeps on several workers and of several jobs: what they leave together."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.cli import Refused
from conf.gather import main as report
from conf.parallel import Parallel
from tests.conf.test_build import built
from tests.conftest import REPOSITORY

CommandLine = Callable[..., int]

TINY = ("+experiment=demo", "workload.duration_s=3", "output.figures=false")
GRID = (*TINY, "+grid.seed=[0,3]")

ON_TWO_WORKERS = """
import sys
from distributed import Client, LocalCluster
from sim.__main__ import main

def has_written_tables():
    return "pyarrow.parquet" in sys.modules

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        sys.argv[1:] = ["run", *sys.argv[1:], "parallel.backend=dask", f"parallel.address={cluster.scheduler_address}"]
        assert main() == 0
        assert all(client.run(has_written_tables).values()) and not has_written_tables()
"""


def written(folder: Path) -> dict[str, bytes]:
    """What must be the same wherever the runs were carried out."""
    kept = [folder / "report.txt", folder / "runs.csv", *folder.glob("*/*.parquet")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def alone(command: CommandLine) -> dict[str, bytes]:
    """What the grid leaves that one process carried out, a run after the other."""
    command(*GRID, "output.folder=alone", "parallel.jobs=1")
    return written(Path("alone"))


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_results_do_not_depend_on_who_carries_runs_out(
    backend: str, alone: dict[str, bytes], command: CommandLine
) -> None:
    command(*GRID, f"output.folder={backend}", f"parallel.backend={backend}", "parallel.jobs=2")
    assert written(Path(backend)) == alone


def test_a_dask_cluster_of_two_workers_leaves_the_same_results(alone: dict[str, bytes]) -> None:
    pytest.importorskip("distributed")
    Path("cluster.py").write_text(ON_TWO_WORKERS)
    done = subprocess.run(
        [sys.executable, "cluster.py", *GRID, "output.folder=dask"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert written(Path("dask")) == alone


def test_an_address_without_a_cluster_is_a_mistake_in_one_line(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("conf.cluster.CONNECT_S", 0.2)
    with pytest.raises(Refused, match=r"parallel\.address=tcp://127\.0\.0\.1:1: no dask cluster"):
        command(*GRID, "parallel.backend=dask", "parallel.address=tcp://127.0.0.1:1")


def test_a_package_that_is_not_there_is_a_mistake_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conf.parallel.find_spec", dict[str, None]().get)
    with pytest.raises(ValueError, match=r'needs the package ray, which is not here; pip install "hbmlab\[ray\]"'):
        built(*TINY, "parallel.backend=ray")


@pytest.mark.parametrize(
    ("given", "told"),
    [({"jobs": 0}, "parallel.jobs=0 must be"), ({"address": "tcp://a:1"}, "parallel.address has no effect")],
)
def test_settings_without_sense_are_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Parallel(**given)  # type: ignore[arg-type]


def test_the_jobs_of_a_multirun_end_in_one_table(command: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ("-m", "seed=0,3", "hardware=gh200_paper,h200_pcie", "parallel.jobs=1")
    command(*TINY, *jobs, "output.folder=sweep")
    told = capsys.readouterr().out
    for machine in ("gh200_paper", "h200_pcie"):
        assert f"sharegpt hardware={machine}, 10 requests/s, mean of 2 seeds" in told
    table = rows(Path("sweep"))
    assert [(row["hardware.name"], row["seed"], row["system"]) for row in table] == [
        (machine, seed, system)
        for seed in ("0", "3")
        for machine in ("gh200_paper", "h200_pcie")
        for system in ("recompute", "mirage")
    ]
    assert all((Path("sweep") / row["folder"] / "run.json").is_file() for row in table)
    assert report(["sweep", "--into", "again"]) == 0
    assert Path("again/report.txt").read_text() == Path("sweep/report.txt").read_text()


def test_a_report_on_nothing_is_a_mistake() -> None:
    with pytest.raises(Refused, match="no complete run below nowhere"):
        report(["nowhere"])


def test_one_number_that_varies_is_the_axis_of_the_figure(command: CommandLine) -> None:
    command(*TINY, "output.figures=true", "+grid.tenancy.quantum_s=[0.1,1]", "output.folder=quanta", "parallel.jobs=1")
    assert {path.name for path in Path("quanta").glob("*.png")} == {
        "against-quantum_s.png",
        "hbm-sharegpt-10.png",
        "latencies-sharegpt.png",
    }
