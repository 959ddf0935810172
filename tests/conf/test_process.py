"""The run command as a process: exit codes and what stands on stderr."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

STAND_IN = """
import sys, time, types
import conf

def run(experiment, folder):
    {body}

conf.compare = sys.modules["conf.compare"] = types.ModuleType("conf.compare")
conf.compare.run = run
from sim.__main__ import main
sys.exit(main())
"""


def process(body: str, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """``python -m sim`` with a stand-in for what carries an experiment out."""
    return subprocess.Popen(
        [sys.executable, "-c", STAND_IN.format(body=body), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "arguments", [["serving.block=1"], ["seed=-1"], ["-m", "seed=-1,1"], ["output.root=/dev/null"], ["seed=[1"]]
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments: list[str], tmp_path: Path) -> None:
    done = process("pass", "run", *arguments, cwd=tmp_path)
    _, err = done.communicate()
    assert done.returncode == 2
    assert err.startswith("python -m sim run: ")
    assert err.count("\n") == 1


def test_a_bug_keeps_its_traceback_and_exits_with_1(tmp_path: Path) -> None:
    done = process("raise ZeroDivisionError('a bug')", "run", cwd=tmp_path)
    _, err = done.communicate()
    assert done.returncode == 1
    assert "Traceback" in err
    assert err.rstrip().endswith("ZeroDivisionError: a bug")


def test_who_closes_the_output_ends_the_command_without_a_word(tmp_path: Path) -> None:
    with process("print('much')", "settings", cwd=tmp_path) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        assert (done.stderr.read(), done.wait()) == ("", 141)


def test_ctrl_c_is_one_line_and_exit_code_130(tmp_path: Path) -> None:
    done = process("print('started', flush=True); time.sleep(60)", "run", cwd=tmp_path)
    assert done.stdout is not None
    assert done.stdout.readline() == "started\n"
    done.send_signal(signal.SIGINT)
    _, err = done.communicate()
    assert (done.returncode, err) == (130, "python -m sim run: interrupted\n")
