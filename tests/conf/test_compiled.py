"""Runs whose hot modules are machine code leave what plain Python leaves, to the byte."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from conf.compiled import HOT, READ, ROOT, build_of
from tests.conf.drawn_runs import N_DRAWN
from tests.conftest import REPOSITORY

PLAIN_RUNS = """
import runpy
import policies.engine  # before conf, which then leaves the compiled modules alone
runpy.run_module("tests.conf.drawn_runs", run_name="__main__")
"""


def python(*arguments: str, cwd: Path) -> str:
    """Call Python on this program; what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def compiled() -> None:
    """The sources as they are, compiled beside them, if that has not been done before."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    if find_spec("mypyc") is None or shutil.which(compiler) is None:
        pytest.skip("mypyc or a C compiler is missing")
    python("-m", "sim", "compile", cwd=REPOSITORY)


@pytest.mark.timeout(400)  # mypyc and the C compiler take a minute
@pytest.mark.usefixtures("compiled")
def test_runs_of_every_kind_leave_the_same_tables(tmp_path: Path) -> None:
    # each in a process of its own: what Hypothesis draws depends on which modules are loaded
    compiled = python(
        "-m", "tests.conf.drawn_runs", "compiled", str(tmp_path / "compiled"), cwd=REPOSITORY
    ).splitlines()
    plain = python("-c", PLAIN_RUNS, "plain", str(tmp_path / "plain"), cwd=REPOSITORY).splitlines()
    assert len(plain) > 3 * N_DRAWN
    assert [line for line in compiled if line not in plain] == []
    assert compiled == plain


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
def test_the_recorded_schedules_of_vllm_come_out_the_same() -> None:
    tests = ("tests/serving/test_oracle_v0.py", "tests/serving/test_oracle_v1.py")
    assert "passed" in python("-m", "pytest", "--compiled", "-q", "-p", "no:cacheprovider", *tests, cwd=REPOSITORY)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
def test_ranks_can_be_sent_what_they_are_told() -> None:
    pytest.importorskip("torch")
    tests = "tests/executor/ranks/test_sending.py"
    assert "passed" in python("-m", "pytest", "--compiled", "-q", "-p", "no:cacheprovider", tests, cwd=REPOSITORY)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("compiled")
def test_the_command_and_its_workers_use_them_and_say_so(tmp_path: Path) -> None:
    choices = ("+experiment=demo", "workload.duration_s=1", "output.folder=out", "parallel.jobs=2")
    python("-m", "sim", "run", *choices, cwd=tmp_path)
    headers = [path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("*/run.json")]
    assert len(headers) > 1
    assert all('"compiled": true' in header for header in headers)


def test_an_edit_of_a_source_makes_another_build(tmp_path: Path) -> None:
    for pattern in READ:
        for path in ROOT.glob(pattern):
            (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / path.relative_to(ROOT))
    before = build_of(tmp_path)
    assert before.name == build_of(ROOT).name
    edited = tmp_path / HOT[0]
    edited.write_text(edited.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    assert build_of(tmp_path) != before
