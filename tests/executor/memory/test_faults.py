"""In ``remap`` mode a page that is not there faults, so that a stale address cannot read another's data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.executor.memory.test_device import WORLDS
from tests.executor.vmm.worlds import open_cuda

TOUCH = """
import torch
from executor.memory.ranges import LendMode
from policies.memory.residency import Loan, Target
from tests.executor.memory.scenes import open_scene

lent_to_wide = Target(cycling=(0, 2), n_slots=1, loans=(Loan(2, 0),))
with open_scene({world!r}, LendMode.REMAP) as scene:
    memory = scene.memory
    first, _ = memory.models[0].layout.range_of(1, 2)
    home, block = memory.weights(1, 2), memory.kv(0)[first]
    {steps}
    print("touching", flush=True)
    print(int({touched}[0].cpu()))
"""

LEND = "scene.enact(Target(), lent_to_wide)"
WITHDRAW = "scene.enact(Target(), Target()); scene.land_all()"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("steps", "touched", "survives"),
    [
        pytest.param("pass", "block", False, id="a block of a range that is not lent"),
        pytest.param("pass", "home", True, id="a home"),
        pytest.param(LEND, "block", True, id="a block of a lent range"),
        pytest.param(LEND, "home", False, id="a home that is lent"),
        pytest.param(f"{LEND}; {WITHDRAW}", "block", False, id="a block of a range that has gone back"),
        pytest.param(f"{LEND}; {WITHDRAW}", "home", True, id="a home that has come back"),
    ],
)
def test_touching(world: str, steps: str, touched: str, survives: bool) -> None:
    if world == "cuda":
        open_cuda().close()
    code = TOUCH.format(world=world, steps=steps, touched=touched)
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("touching\n"), done.stderr
    assert (done.returncode == 0) is survives, done.stderr
