"""What a run of the real loop leaves adds up, whatever the system."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out
from tests.results.scripted import bytes_of_tables
from traces.results.folder import RunTables, read_run
from traces.results.metrics import summarise
from traces.results.tables import ints, present


def run(folder: Path, system: str, *overrides: str) -> Path:
    """C1 under three bursty seconds at a rate that it cannot serve, so that every system has to act."""
    workload = ["lengths=sharegpt", "rates=[60]", "workload.duration_s=3"]
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["+experiment=c1", f"compare=[{system}]", *workload, *overrides])
    (only,) = build(cfg).runs
    return carry_out(only, folder)


@pytest.fixture(scope="module", params=["recompute", "swap", "mirage"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one system."""
    return run(tmp_path_factory.mktemp("run"), request.param)


@pytest.fixture
def tables(folder: Path) -> RunTables:
    return read_run(folder)


def test_the_gaps_are_those_between_the_tokens_of_the_requests(tables: RunTables) -> None:
    spoke = present(tables.requests, "first_token_ns")
    first_ns, finish_ns, n_tokens = (ints(spoke, c) for c in ("first_token_ns", "finish_ns", "n_output_tokens"))
    gap_ns, n = ints(tables.gaps, "gap_ns"), ints(tables.gaps, "n")
    assert n.sum() == (n_tokens - 1).sum()
    assert gap_ns @ n == (finish_ns - first_ns).sum()
    assert gap_ns.max() == ints(present(spoke, "max_gap_ns"), "max_gap_ns").max()


def test_steps_take_turns_and_last_until_the_last_request(tables: RunTables) -> None:
    assert tables.steps is not None
    start_ns, end_ns, stall_ns = (ints(tables.steps, c) for c in ("start_ns", "end_ns", "stall_ns"))
    assert (start_ns[1:] >= end_ns[:-1]).all()
    assert (stall_ns <= end_ns - start_ns).all()
    assert end_ns.max() >= ints(tables.requests, "finish_ns").max()


def test_every_system_had_to_act(tables: RunTables) -> None:
    total = summarise(tables).total
    assert total.n_lends if tables.info.system == "mirage" else total.n_preemptions


@pytest.mark.parametrize("leaps", ["true", "false"])
def test_again_or_with_steps_submitted_one_by_one_it_leaves_the_same_bytes(
    folder: Path, tables: RunTables, tmp_path: Path, leaps: str
) -> None:
    again = run(tmp_path, tables.info.system, f"backend.leaps={leaps}")
    assert bytes_of_tables(again) == bytes_of_tables(folder)
