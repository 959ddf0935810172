from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from policies.journal import GapCause
from policies.types import GIB
from tests.results.scripted import NO_SCHEDULER, info, sequence, use
from traces.claims import Result
from traces.plots.hbm import hbm
from traces.plots.latencies import latencies
from traces.plots.sweep import against_rate, against_setting, numeric_keys
from traces.results.folder import RunTables, read_run
from traces.results.metrics import Summary, summarise
from traces.results.results import RunWriter

PNG = b"\x89PNG\r\n\x1a\n"


def run(folder: Path, system: str, rate_per_s: float | None = 2.0, *, n_requests: int = 30) -> RunTables:
    with RunWriter(folder, info(system=system, rate_per_s=rate_per_s, hbm_bytes=10 * GIB)) as writer:
        for number in range(n_requests):
            seq = sequence(number, arrival_s=number, tokens_s=[number + 0.5, number + 0.6, number + 0.8])
            writer.retired(number % 2, 0, [seq], NO_SCHEDULER)
            writer.gaps(number % 2, GapCause.DECODE, [10**8, 2 * 10**8], 1)
            writer.hbm(number * 10**9, [use(0, lent_bytes=number % 3 * GIB), use(1, n_base_used=number % 10)])
    return read_run(folder)


def test_distributions_are_drawn_for_every_rate_and_system(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"{system}{rate}", system, rate) for rate in (2.0, None) for system in ("a", "b")]
    latencies(runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


def test_a_system_in_which_nothing_finished_is_an_empty_line(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", "a"), run(tmp_path / "b", "b", n_requests=0)]
    latencies(runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()


def test_hbm_is_drawn_for_every_system(tmp_path: Path) -> None:
    hbm([run(tmp_path / system, system) for system in ("a", "b")], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


def test_hbm_cannot_be_drawn_without_the_memory_table(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info(system="a"), tables=("requests", "gaps")):
        pass
    with pytest.raises(ValueError, match="run of a: it kept no memory table; run it with that table"):
        hbm([read_run(tmp_path)], tmp_path / "figure.png")


def test_figures_are_drawn_against_the_rate(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"{system}{rate}", system, rate) for rate in (2.0, 4.0) for system in ("a", "b")]
    against_rate([Result(info=each.info, summary=summarise(each)) for each in runs], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


def test_figures_are_drawn_against_a_setting_also_of_systems_without_it(tmp_path: Path) -> None:
    key = "policy.b.cap"
    runs = [run(tmp_path / "a", "a"), *(run(tmp_path / f"b{cap}", "b") for cap in (1, 50))]
    grids: list[dict[str, int]] = [{}, {key: 1}, {key: 50}]
    results = [
        Result(info=replace(each.info, grid=grid), summary=summarise(each))
        for each, grid in zip(runs, grids, strict=True)
    ]
    assert numeric_keys(results) == [key]
    against_setting(results, key, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


def test_words_and_truth_values_are_no_numbers_to_draw_against() -> None:
    grid = {"a": True, "b": "even", "c": None, "d": 0.5}
    result = Result(info=info(grid=grid), summary=cast("Summary", None))
    assert numeric_keys([result]) == ["d"]
