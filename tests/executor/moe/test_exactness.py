"""Wherever the experts of a layer come from, a step computes the same, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from executor.memory.ranges import LendMode
from executor.transfer.staging import Staging
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault
from policies.errors import HbmOverdrawn
from policies.memory.experts import Offload
from tests.executor.moe.stage import Setting, Stage, World, open_stage, schedule
from tests.executor.vmm.worlds import open_cuda

WORLDS = [pytest.param("memfd", id="memfd"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]

every_world = pytest.mark.parametrize("world", WORLDS)
every_mode = pytest.mark.parametrize("mode", [LendMode.ALIAS, LendMode.REMAP])
STEPS = schedule(n_blocks=12)


@cache
def resident(world: World) -> tuple[Tensor, ...]:
    """Hidden states of every step with all experts at home."""
    if world == "cuda":
        open_cuda().close()
    with open_stage(Setting(world=world, fraction=0.0)) as stage:
        return tuple(stage.run(rows) for rows in STEPS)


def n_different(stage: Stage, world: World, before: Callable[[int], None] | None = None) -> int:
    """Steps that do not end in the bits of the run with all experts at home."""
    expected, n = resident(world), 0
    for nth, rows in enumerate(STEPS):
        if before is not None:
            before(nth)
        n += not torch.equal(stage.run(rows), expected[nth])
    return n


@every_world
@every_mode
@pytest.mark.parametrize("n_increments", [0, 1, 2, 3, 4, 5, 6])
def test_with_experts_lent_all_the_time_it_is_the_same(world: World, mode: LendMode, n_increments: int) -> None:
    with open_stage(Setting(world=world, mode=mode)) as stage:
        assert stage.staged.memory.experts.most_increments == 6  # 4 layers of 4 groups, 3 at a time
        stage.move_to(n_increments)
        assert n_different(stage, world) == 0


@every_world
@every_mode
@pytest.mark.parametrize("n_layers", [2, 3, 5])
def test_with_another_boundary_before_every_step_it_is_the_same(world: World, mode: LendMode, n_layers: int) -> None:
    random, setting = Random(1), Setting(world=world, mode=mode, n_layers=n_layers)
    with open_stage(Setting(world=world, fraction=0.0, n_layers=n_layers)) as stage:
        expected = [stage.run(rows) for rows in STEPS]
    with open_stage(setting) as stage:
        for rows, hidden in zip(STEPS, expected, strict=True):
            stage.move_to(random.randint(0, stage.staged.memory.experts.most_increments))
            assert torch.equal(stage.run(rows), hidden)


@every_world
@every_mode
def test_blocks_in_lent_groups_serve_as_well_as_those_of_its_own(world: World, mode: LendMode) -> None:
    setting = Setting(world=world, mode=mode, n_base_blocks=1)
    with open_stage(setting) as stage:
        stage.move_to(6)
        assert stage.staged.memory.kv.shape[0] >= 12
        assert n_different(stage, world) == 0


@every_world
@pytest.mark.parametrize("nth", range(8))
def test_one_skipped_fetch_is_noticed(world: World, nth: int) -> None:
    with open_stage(Setting(world=world)) as stage:
        skip_fetch(stage, nth)
        stage.move_to(6)
        assert n_different(stage, world) > 0


def skip_fetch(stage: Stage, nth: int) -> None:
    """From now on leave one fetch out."""
    streams = stage.staged.streams
    fetch, count = streams.fetch, iter(range(10**9))

    def skipping(to: Tensor, source: Tensor, after: object = None) -> object:
        return streams.mark() if next(count) == nth else fetch(to, source, after)

    streams.fetch = skipping  # pyright: ignore[reportAttributeAccessIssue]


def hurry(staging: Staging[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a buffer to its next layer before the experts that enter have run."""
    enter, leave, fetched = staging.enter, staging.leave, staging._fetches  # pyright: ignore[reportPrivateUsage]

    def too_early(layer: int) -> None:
        enter(layer)
        leave(layer)  # the fetch for the buffer's next visit starts now ...
        for marks in fetched:
            for mark in marks:
                staging._streams.hold(mark)  # pyright: ignore[reportPrivateUsage] # ... and is done before

    def nothing(_layer: int) -> None:
        pass

    monkeypatch.setattr(staging, "enter", too_early)
    monkeypatch.setattr(staging, "leave", nothing)


@every_world
def test_a_buffer_that_is_overwritten_one_layer_early_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_stage(Setting(world=world)) as stage:
        hurry(stage.staged.staging, monkeypatch)
        stage.move_to(6)
        assert n_different(stage, world) > 0


@every_world
@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize(("now", "wanted"), [(0, 3), (4, 1)])
def test_a_change_that_any_driver_call_refuses_changes_no_step(
    world: World, out_of_memory: bool, now: int, wanted: int
) -> None:
    """Refused in the midst of offloading and of taking back; every later step is as if nobody had asked."""
    with open_stage(Setting(world=world)) as stage:
        stage.move_to(now)

        def refused(nth: int) -> None:
            stage.driver.set_fault(Fault(nth=nth, out_of_memory=out_of_memory))
            with pytest.raises(HbmOverdrawn if out_of_memory else DriverError):
                stage.move_to(wanted)
            stage.driver.set_fault(None)
            assert stage.staged.memory.experts.n_increments == now

        assert n_different(stage, world, refused) == 0


def fetched_bytes(stage: Stage) -> list[int]:
    """Sizes of the fetches from now on."""
    streams, sizes = stage.staged.streams, list[int]()
    fetch = streams.fetch

    def counting(to: Tensor, source: Tensor, after: object = None) -> object:
        sizes.append(to.numel())
        return fetch(to, source, after)

    streams.fetch = counting  # pyright: ignore[reportAttributeAccessIssue]
    return sizes


def test_every_step_stages_what_is_offloaded_whatever_the_router_chooses() -> None:
    with open_stage(Setting()) as stage:
        stage.move_to(4)
        sizes, group = fetched_bytes(stage), stage.staged.memory.extents.group.n_bytes
        for rows in STEPS:
            sizes.clear()
            stage.run(rows)
            assert sum(sizes) == 12 * group == stage.staged.memory.experts.offloaded_bytes
            assert len(sizes) == 4


def test_a_boundary_that_moves_on_has_only_what_is_missing_fetched() -> None:
    with open_stage(Setting()) as stage:
        stage.move_to(4)  # three groups of each layer: the buffers hold those of the first two
        sizes, group = fetched_bytes(stage), stage.staged.memory.extents.group.n_bytes
        stage.move_to(5)  # the fourth of the first three layers
        assert sizes == [group, group]


def n_bytes_mapped(stage: Stage) -> int:
    return sum(n_bytes for _, n_bytes, _ in stage.driver.mappings.values())


def test_remapping_needs_no_more_memory_than_there_is() -> None:
    with open_stage(Setting()) as stage:
        before = n_bytes_mapped(stage)
        stage.move_to(6)
        assert n_bytes_mapped(stage) == before
        stage.move_to(0)
        assert n_bytes_mapped(stage) == before


def test_an_op_that_does_not_follow_is_refused() -> None:
    with open_stage(Setting()) as stage:
        experts = stage.staged.memory.experts
        with pytest.raises(ValueError, match="does not follow 0 increments"):
            stage.staged.mover.carry_out([Offload(0, 1, experts.groups_of_increment(1))])
