"""Every notebook runs from top to bottom, and is committed without output."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
SELF_SUFFICIENT = [path for path in NOTEBOOKS if path.stem != "04_vamp"]  # which reads results: test_vamp_notebook.py
LONGEST_FUNCTION = 5  # lines: what is longer belongs into a module


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def code(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("notebook", SELF_SUFFICIENT, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_output_and_says_what_each_part_is(notebook: Path) -> None:
    kinds = [cell["cell_type"] for cell in cells(notebook)]
    assert kinds[0] == "markdown"
    for cell in cells(notebook):
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    for part in ast.walk(ast.parse("\n".join(code(notebook)))):
        if isinstance(part, ast.FunctionDef):
            assert part.end_lineno is not None
            assert part.end_lineno - part.lineno < LONGEST_FUNCTION, f"{notebook.name}: {part.name}"


@pytest.mark.parametrize("notebook", SELF_SUFFICIENT, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path) -> None:
    program = "\n".join([*code(notebook), "print(sum(bool(plt.figure(n).axes) for n in plt.get_fignums()))"])
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", program],
        cwd=notebook.parent,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) >= 1  # it drew something


@pytest.mark.parametrize("notebook", SELF_SUFFICIENT, ids=lambda path: path.stem)
def test_every_figure_of_a_notebook_names_its_axes(notebook: Path) -> None:
    """Titles, axes and units, except where a table stands."""
    drawn = [cell for cell in code(notebook) if "plt.subplots" in cell]
    assert drawn
    for cell in drawn:
        assert "xlabel=" in cell
        assert "ylabel" in cell
        assert "title=" in cell
