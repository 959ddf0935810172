"""In ``remap`` mode a page that is not there faults, so that a stale address cannot read another's data."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from tests.conftest import REPOSITORY
from tests.executor.memory.test_device import WORLDS
from tests.executor.memory.touching import TOUCHES
from tests.executor.vmm.worlds import open_cuda


@cache
def told(world: str) -> tuple[list[str], str]:
    """What ``touching`` prints, and the end of what went wrong."""
    command = [sys.executable, "-m", "tests.executor.memory.touching", world]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr[-500:]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", TOUCHES)
def test_only_what_serves_there_can_be_touched(world: str, name: str) -> None:
    if world == "cuda":
        open_cuda().close()
    lines, fault = told(world)
    line = f"{name}: {TOUCHES[name].survives}"
    assert line in lines, fault
    assert lines[lines.index(line) - 1] == "touching", fault  # and nothing failed before
