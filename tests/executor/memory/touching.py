"""Touch one byte after a change in ``remap`` mode, in a process of its own, and tell who survives.

    python -m tests.executor.memory.touching memfd

Each process is forked after torch was imported and before a device is opened: importing takes longer than all else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from executor.memory.ranges import LendMode
from policies.memory.residency import Loan, Target
from tests.executor.memory.scenes import Scene, open_scene

WIDE, DEEP = 0, 1
NOTHING = Target()
LENT_TO_WIDE = Target(cycling=(0, 2), n_slots=1, loans=(Loan(2, WIDE),))
"""A target of ``deep``: its home 2 is KV cache of ``wide``."""


def stay(scene: Scene) -> None:
    """Change nothing."""
    assert not scene.ledger.anything_lent


def lend(scene: Scene) -> None:
    scene.enact(NOTHING, LENT_TO_WIDE)


def lend_and_withdraw(scene: Scene) -> None:
    lend(scene)
    scene.enact(NOTHING, NOTHING)
    scene.land_all()


def home(scene: Scene) -> torch.Tensor:
    return scene.memory.weights(DEEP, 2)


def block(scene: Scene) -> torch.Tensor:
    first, _ = scene.memory.models[WIDE].layout.range_of(DEEP, 2)
    return scene.memory.kv(WIDE)[first]


@dataclass(frozen=True, slots=True)
class Touch:
    """What is done first, what is touched then, and whether that may be."""

    change: Callable[[Scene], None]
    touched: Callable[[Scene], torch.Tensor]
    survives: bool


TOUCHES = {
    "a block of a range that is not lent": Touch(stay, block, False),
    "a home": Touch(stay, home, True),
    "a block of a lent range": Touch(lend, block, True),
    "a home that is lent": Touch(lend, home, False),
    "a block of a range that has gone back": Touch(lend_and_withdraw, block, False),
    "a home that has come back": Touch(lend_and_withdraw, home, True),
}


def survives(world: str, touch: Touch) -> bool:
    """Touch in a new process; whether it lives to end as it should."""
    child = os.fork()
    if child == 0:
        try:
            with open_scene(world, LendMode.REMAP) as scene:
                touch.change(scene)
                tensor = touch.touched(scene)
                os.write(1, b"touching\n")
                int(tensor[0].cpu())
        except BaseException as fault:
            os.write(2, f"{type(fault).__name__}: {fault}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0


def main() -> None:
    """Print who survives, a line each."""
    for name, touch in TOUCHES.items():
        print(f"{name}: {survives(sys.argv[1], touch)}", flush=True)


if __name__ == "__main__":
    main()
