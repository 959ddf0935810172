"""Sessions served on a device by VAMP: experts go and come back, prefixes are found again, and nobody can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch

from policies.memory.experts import Offload, Reload, move_boundaries
from policies.recompute import Recompute
from tests.executor.moe.serve import LENDS_FREELY, SERVING, Asked, Served, Setting, Stage, open_stage, serve
from tests.executor.moe.stage import World
from tests.executor.vmm.worlds import open_cuda
from traces.sessions.closed_loop import equal_sessions
from traces.sessions.sessions import Session

WORLDS = [pytest.param("memfd", id="memfd"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]

every_world = pytest.mark.parametrize("world", WORLDS)
every_mode = pytest.mark.parametrize("vmm", ["alias", "range"])


def sessions(n: int = 6) -> Iterator[Session]:
    """Contexts of up to 107 tokens, seven blocks, in four turns."""
    return equal_sessions(n, n_turns=4, first_tokens=35, added_tokens=9, output_tokens=11, think_ns=30_000_000)


@cache
def recorded(world: World) -> Served:
    """A run in which experts leave and come back."""
    if world == "cuda":
        open_cuda().close()
    return serve(Setting(world=world), sessions(), n_at_once=4)


def replayed(world: World, setting: Setting, *, moves: bool, n_increments: int | None = None) -> int:
    """Steps of the recorded schedule that end in other bits.

    Args:
        moves: experts move as they did; else as many increments as said are out before every step, -1: any number.
    """
    n, random, schedule = 0, Random(2), recorded(world).record
    with open_stage(setting) as stage:
        for entry in schedule.entries:
            if not isinstance(entry, Asked):
                if moves:
                    stage.staged.mover.carry_out(entry)
                continue
            if n_increments is not None:
                most = stage.staged.memory.experts.most_increments
                move_to(stage, random.randint(0, most) if n_increments < 0 else n_increments)
            passed = stage.staged.forward.run(entry.rows)
            stage.staged.streams.take_stalls()
            stage.staged.streams.wait(stage.staged.streams.mark())
            n += not torch.equal(passed.hidden.cpu(), entry.hidden)
    return n


def move_to(stage: Stage, n_increments: int) -> None:
    ops, _ = move_boundaries(0, stage.staged.memory.experts, n_increments)
    stage.staged.mover.carry_out(ops)


def roomy(world: World, vmm: str) -> Setting:
    """Base blocks for all that the schedule ever used."""
    return Setting(world=world, vmm=vmm, n_base_blocks=60)


@every_world
def test_experts_leave_and_come_back_and_prefixes_are_found_again(world: World) -> None:
    served = recorded(world)
    assert any(isinstance(op, Offload) for op in served.record.ops)
    assert any(isinstance(op, Reload) for op in served.record.ops)
    assert sum(row.n_hit_tokens for row in served.journal.requests) > 0
    base = Setting(world=world).n_base_blocks
    assert any(block > base for asked in served.record.asked for row in asked.rows for block in row.blocks)


@every_world
@every_mode
def test_the_schedule_once_more_gives_the_same_bits(world: World, vmm: str) -> None:
    assert replayed(world, Setting(world=world, vmm=vmm), moves=True) == 0


@every_world
@every_mode
@pytest.mark.parametrize("n_increments", [0, 4, -1])
def test_with_experts_resident_lent_or_moving_all_the_time_it_gives_the_same_bits(
    world: World, vmm: str, n_increments: int
) -> None:
    assert replayed(world, roomy(world, vmm), moves=False, n_increments=n_increments) == 0


def test_every_request_says_what_it_says_without_lending_and_without_a_cache() -> None:
    plain = replace(SERVING, prefix_caching=False)
    alone = serve(Setting(policy=Recompute(), n_base_blocks=60, serving=plain), sessions(), n_at_once=4)
    caching = serve(Setting(policy=Recompute()), sessions(), n_at_once=4)
    never = serve(Setting(policy=replace(LENDS_FREELY, restore=False), vmm="alias"), sessions(), n_at_once=4)
    for served in (recorded("memfd"), caching, never):
        assert served.said == alone.said
    assert sum(row.n_hit_tokens for row in caching.journal.requests) > 0
