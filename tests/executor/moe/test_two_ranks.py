"""Two ranks of a mixture of experts compute what one does, whatever is lent on both, and refuse together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from torch import Tensor

from executor.memory.ranges import LendMode
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault, FaultyDriver
from policies.errors import DeviceFailed, HbmOverdrawn
from policies.memory.experts import Offload, Reload
from tests.executor.moe import serve
from tests.executor.moe.stage import DIVISIBLE, Setting, Stage, open_stage, schedule
from tests.executor.moe.test_serving import sessions

STEPS = schedule(n_blocks=12)
CLOSE = 1e-12
"""Of hidden states in float64, relative to the largest: two ranks add in another order."""

every_mode = pytest.mark.parametrize("mode", [LendMode.ALIAS, LendMode.REMAP])


def divided(mode: LendMode = LendMode.REMAP, n_base_blocks: int = 12) -> Setting:
    """Two ranks, each with half of every expert and one of two KV heads."""
    return Setting(size=DIVISIBLE, n_ranks=2, mode=mode, n_base_blocks=n_base_blocks)


@cache
def alone() -> tuple[Tensor, ...]:
    """Hidden states of every step on one rank with all experts at home."""
    with open_stage(Setting(size=DIVISIBLE, fraction=0.0)) as stage:
        return tuple(stage.run(rows) for rows in STEPS)


def agrees(stage: Stage, before: Callable[[int], None] | None = None) -> bool:
    """Whether the hidden states of every step are those of one rank."""
    far: list[float] = []
    for nth, (rows, expected) in enumerate(zip(STEPS, alone(), strict=True)):
        if before is not None:
            before(nth)
        far.append(float((stage.run(rows) - expected).abs().max() / expected.abs().max()))
    return all(each < CLOSE for each in far)  # NaN is not


def both(stage: Stage) -> list[int]:
    """How far experts are lent on each rank, once all have done what they were told."""
    assert stage.together is not None
    stage.together.wait()
    return [stage.staged.memory.experts.n_increments, *(other.n_increments for other in stage.together.others)]


def drivers(stage: Stage) -> list[FaultyDriver]:
    """Of each rank."""
    assert stage.together is not None
    return [stage.driver, *(other.driver for other in stage.together.others)]


@pytest.mark.parametrize("n_increments", [0, 1, 6])
def test_two_ranks_agree_with_one(n_increments: int) -> None:
    with open_stage(divided()) as stage:
        assert stage.staged.memory.experts.most_increments == 6  # 4 layers of 4 groups, 3 at a time
        stage.move_to(n_increments)
        assert agrees(stage)
        assert both(stage) == [n_increments] * 2


def test_ranks_that_hold_the_same_kv_head_agree_with_one() -> None:
    """Four ranks of two KV heads: ranks 0 and 1 have the first, 2 and 3 the second."""
    with open_stage(replace(divided(), n_ranks=4)) as stage:
        stage.move_to(1)
        assert agrees(stage)
        assert both(stage) == [1] * 4


@every_mode
def test_with_another_boundary_forced_before_every_step_they_still_agree(mode: LendMode) -> None:
    random = Random(1)
    with open_stage(divided(mode)) as stage:

        def change(_nth: int) -> None:
            wanted = random.randint(0, stage.staged.memory.experts.most_increments)
            stage.move_to(wanted)
            assert both(stage) == [wanted] * 2

        assert agrees(stage, change)


def test_blocks_in_lent_groups_of_every_rank_serve_as_well_as_those_of_its_own() -> None:
    with open_stage(divided(n_base_blocks=1)) as stage:
        stage.move_to(6)
        assert stage.staged.memory.kv.shape[0] >= 12
        assert agrees(stage)


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize(("now", "wanted"), [(0, 3), (4, 1)])
def test_what_one_rank_refuses_neither_does(faulty: int, out_of_memory: bool, now: int, wanted: int) -> None:
    """In the midst of offloading and of taking back, at each driver call; later steps are as if nobody had asked."""
    with open_stage(divided()) as stage:
        stage.move_to(now)
        assert both(stage) == [now] * 2
        mapped = [driver.mappings for driver in drivers(stage)]

        def refused(nth: int) -> None:
            drivers(stage)[faulty].set_fault(Fault(nth=nth, out_of_memory=out_of_memory))
            with pytest.raises(HbmOverdrawn if out_of_memory else DriverError):
                stage.move_to(wanted)
            assert both(stage) == [now] * 2
            assert [driver.mappings for driver in drivers(stage)] == mapped
            drivers(stage)[faulty].set_fault(None)

        assert agrees(stage, refused)


def test_the_refusing_rank_is_named() -> None:
    with open_stage(divided()) as stage:
        drivers(stage)[1].set_fault(Fault(nth=0, out_of_memory=True))
        with pytest.raises(HbmOverdrawn, match=r"rank 1 failed with 999: unmap failed with 999: as commanded"):
            stage.move_to(1)
        assert both(stage) == [0, 0]


def test_a_memory_that_cannot_go_back_on_one_rank_ends_the_run() -> None:
    with pytest.raises(DeviceFailed, match="rank 1 is gone; the run cannot go on"), open_stage(divided()) as stage:
        spoil(stage)


def spoil(stage: Stage) -> None:
    drivers(stage)[1].set_fault(Fault(nth=1, persists=True))
    with pytest.raises(DriverError, match="rank 1 failed"):
        stage.move_to(3)
    both(stage)


def test_sessions_on_two_ranks_lend_find_prefixes_and_say_what_they_say_on_one() -> None:
    one = serve.serve(serve.Setting(size=DIVISIBLE), sessions(), n_at_once=4)
    two = serve.serve(serve.Setting(size=DIVISIBLE, n_ranks=2), sessions(), n_at_once=4)
    assert any(isinstance(op, Offload) for op in two.record.ops)
    assert any(isinstance(op, Reload) for op in two.record.ops)
    assert sum(row.n_hit_tokens for row in two.journal.requests) > 0
    assert two.said == one.said
