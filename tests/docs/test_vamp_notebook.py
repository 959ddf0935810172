"""The notebook of VAMP is run, cell by cell, on small results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conf.paper.collect import collect
from tests.conftest import REPOSITORY

SMALL = ("parallel.jobs=1", "output.figures=false")


def cells(name: str) -> list[str]:
    notebook = json.loads((REPOSITORY / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(name: str) -> list[Any]:
    """Run all cells in one namespace; the figures that they left."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    names: dict[str, object] = {}
    for number, cell in enumerate(cells(name)):
        exec(compile(cell, f"{name}, code cell {number}", "exec"), names)
    return [plt.figure(number) for number in plt.get_fignums()]  # pyright: ignore[reportUnknownMemberType]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    cliff = ["grid.sessions={in_house_h100: {n_sessions: [2, 3]}}", "sessions.in_house_h100.n_turns=2"]
    collect("vamp/fig9a", root, [*SMALL, *cliff, "compare=[recompute,vamp_15]"])
    replay = [
        f"sessions.swe_replay.{name}" for name in ("n_sessions=3", "total_turns=6", "least_turns=1", "most_turns=3")
    ]
    collect("vamp/fig10a", root, [*SMALL, *replay, "compare=[recompute,vamp_15]"])
    return root


def test_the_notebook_of_vamp_draws_what_is_there_and_says_what_is_not(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HBMLAB_RESULTS", str(results))
    figures = run("04_vamp")
    assert len(figures) == 3  # the cliff on one platform, the replay by turn, what may be lent
    cliff = figures[0].axes[0]
    assert {line.get_label() for line in cliff.get_lines()} == {"recompute", "vamp_15"}
    assert all(len(line.get_xdata()) == 2 for line in cliff.get_lines())
    said = capsys.readouterr().out
    assert "fig9b" in said
    assert "sim run +experiment=vamp/fig6" in said
