"""Ranks of a mixture of experts as a person starts them: processes, on CPUs or on two GPUs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from random import Random

import pytest
import torch
from torch import Tensor

from executor.factory import open_served
from executor.mixture.serving import MoeServing
from executor.ranks.processes import lead
from policies.memory.experts import move_boundaries
from tests.executor.moe.stage import DIVISIBLE, Setting, World, open_stage, schedule

STEPS = schedule(n_blocks=12)
ON_CPUS = Setting(size=DIVISIBLE, n_ranks=2)
ON_GPUS = Setting(world="cuda", n_ranks=2)
EVERYWHERE = [pytest.param(ON_CPUS, id="memfd"), pytest.param(ON_GPUS, id="cuda", marks=pytest.mark.gpu)]

EXACT = 1e-12
"""Of hidden states in float64, relative to the largest of a step."""

ROUNDED = 0.05
"""In bfloat16, of each row: it loses up to 2^-8 at each addition."""


@contextmanager
def opened(setting: Setting) -> Generator[MoeServing]:
    """Rank 0 of processes that serve."""
    if setting.world == "cuda" and torch.cuda.device_count() < setting.n_ranks:
        pytest.skip(f"there are no {setting.n_ranks} GPUs")
    world, plan = setting.world, setting.plan
    with lead(world, plan) as ranks, open_served(world, plan, ranks) as serving, ranks.ending():
        assert isinstance(serving, MoeServing)
        yield serving


def hidden(serving: MoeServing, random: Random | None = None) -> list[Tensor]:
    """Hidden states of every step, with another boundary before each if there is randomness; then all are at home."""
    states: list[Tensor] = []
    for rows in STEPS:
        if random is not None:
            move_to(serving, random.randint(0, serving.memory.experts.most_increments))
        passed = serving.forward.run(rows)
        serving.streams.take_stalls()
        serving.streams.wait(serving.streams.mark())
        states.append(passed.hidden.cpu().clone())
    move_to(serving, 0)
    return states


def move_to(serving: MoeServing, n_increments: int) -> None:
    ops, _ = move_boundaries(0, serving.memory.experts, n_increments)
    serving.mover.carry_out(ops)


def alone(world: World) -> list[Tensor]:
    """Those of one rank."""
    with open_stage(Setting(world=world, size=ON_CPUS.size if world == "memfd" else None)) as stage:
        return hidden(stage.staged)


@pytest.mark.parametrize("setting", EVERYWHERE)
def test_processes_compute_what_one_does_and_the_same_bits_wherever_experts_are(setting: Setting) -> None:
    with opened(setting) as serving:
        at_home, moving = hidden(serving), hidden(serving, Random(1))
    assert all(torch.equal(*pair) for pair in zip(at_home, moving, strict=True))
    far = [_far(*pair) for pair in zip(at_home, alone(setting.world), strict=True)]
    if setting.world == "memfd":
        assert all(float(each.max()) < EXACT for each in far)
    else:  # rounding may tip the choice of an expert, and then a row is another one
        assert float((torch.cat(far) < ROUNDED).float().mean()) > 0.9


def _far(ours: Tensor, one: Tensor) -> Tensor:
    """How far each row is from that of one rank, relative to its largest number."""
    ours, one = ours.double(), one.double()
    return (ours - one).abs().amax(1) / one.abs().amax(1)
