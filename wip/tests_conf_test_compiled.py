"""Runs whose hot modules are machine code leave what plain Python leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("conf", "executor", "policies", "sim", "traces")
WHERE = "import conf, policies.engine; print(policies.engine.__file__)"


def python(copy: Path, *arguments: str) -> str:
    """Call Python on the copied program; what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    called = [sys.executable, *arguments]
    return subprocess.run(called, cwd=copy, env=environment, check=True, capture_output=True, text=True).stdout


def tables(copy: Path, name: str) -> dict[str, bytes]:
    """Run C1's systems for some seconds of arrivals; every file that must not depend on how."""
    choices = ("lengths=sharegpt", "rates=[10]", "workload.duration_s=15", "compare=[recompute,swap,mirage]")
    python(copy, "-m", "sim", "run", "+experiment=c1", *choices, "output.figures=false", f"output.folder={name}")
    files = [path for path in (copy / name).rglob("*") if path.suffix == ".parquet" or path.name == "summary.json"]
    return {str(path.relative_to(copy / name)): path.read_bytes() for path in files}


@pytest.mark.timeout(600)  # mypyc and the C compiler take most of a minute
def test_compiled_modules_leave_the_same_bytes_and_an_edit_is_not_overlooked(tmp_path: Path) -> None:
    pytest.importorskip("mypyc")
    copy = tmp_path / "program"
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    plain = tables(copy, "plain")
    assert "compiled" in python(copy, "-m", "sim", "compile")
    assert ".compiled" in python(copy, "-c", WHERE)
    assert len(plain) > 12
    assert tables(copy, "compiled") == plain

    edited = copy / "policies" / "engine.py"
    edited.write_text(edited.read_text() + "\n# edited\n")
    assert ".compiled" not in python(copy, "-c", WHERE)
