"""The command as a person calls it: VAMP on real pages, with the simulator's results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from traces.results.folder import RunTables, read_json, read_run

COMMAND = [sys.executable, "-m", "executor", "run", "+experiment=exec_vamp_tiny"]


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, f"output.folder={folder}", *overrides]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunTables]:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    done = run(folder)
    assert done.returncode == 0, done.stderr
    tables = [read_run(folder / name) for name in read_json(folder / "experiment.json")["runs"]]
    return {each.info.system: each for each in tables}


def test_every_turn_of_every_session_is_answered(finished: dict[str, RunTables]) -> None:
    assert list(finished) == ["recompute", "vamp"]
    for each in finished.values():
        assert each.state == "complete"
        outcomes = each.columns("requests", ["outcome"])["outcome"]
        assert outcomes.tolist() == ["finished"] * 40  # ten sessions of four turns


def test_prefixes_are_found_again_and_experts_leave_and_come_back(finished: dict[str, RunTables]) -> None:
    n_hits = {
        name: int(each.columns("requests", ["n_hit_tokens"])["n_hit_tokens"].sum()) for name, each in finished.items()
    }
    assert n_hits["vamp"] > n_hits["recompute"] > 0
    reasons = reasons_of(finished["vamp"])
    assert {"offload", "restore"} <= reasons, reasons


def reasons_of(tables: RunTables) -> set[str]:
    """Why the boundary moved."""
    decisions = tables.columns("decisions", ["changed", "reason"])
    return set(decisions["reason"][decisions["changed"].astype(bool)].tolist())


def test_two_ranks_lend_and_find_prefixes_too(tmp_path: Path) -> None:
    done = run(tmp_path / "tiny", "mix=exec_vamp_tiny_x2", "compare=[vamp]")
    assert done.returncode == 0, done.stderr
    (name,) = read_json(tmp_path / "tiny" / "experiment.json")["runs"]
    tables = read_run(tmp_path / "tiny" / name)
    requests = tables.columns("requests", ["outcome", "n_hit_tokens"])
    assert requests["outcome"].tolist() == ["finished"] * 40
    assert requests["n_hit_tokens"].sum() > 0
    assert "offload" in reasons_of(tables)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("serving.async_scheduling=true", "the executor launches no step ahead"),
        ("backend.vmm=page", "the executor maps a whole group of experts at once; choose alias or range"),
        ("parallel.jobs=2", "backend.world=memfd has one device; set parallel.jobs=1"),
        (
            "compare=[lru_experts]",
            "policy lru_experts fetches experts once the router has asked for them, which only the",
        ),
        ("mix.experts.share=0.05", "tiny-moe: 5% of memfd_tiny"),
        ("+backend.weights.tiny-moe=nowhere", "nowhere has no config.json"),
        ("backend.ranks=2", "backend.ranks=2: those of experts are mix.experts.ranks; set them there"),
        ("backend.tier=peer", "backend.tier=peer: experts are staged from host memory"),
        ("mix.experts.ranks.n_ranks=3", "model tiny-moe: n_heads=4 does not divide among 3 ranks"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, override: str, told: str) -> None:
    done = run(tmp_path / "tiny", override, "policy.lru_experts.max_offloaded_fraction=0.5")
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
