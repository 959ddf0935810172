"""Two ranks compute what one does, whatever is lent on both, and refuse together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Literal

import pytest
import torch
from torch import Tensor

from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault
from policies.errors import DeviceFailed, HbmOverdrawn
from policies.memory.ops import Lend, Load
from policies.swap import Swap
from tests.executor.backend.replay import Renamed, force, replay
from tests.executor.backend.stage import Entry, Record, Setting, Size, Stage, burst, open_stage, serve
from tests.executor.backend.test_exactness import lent

SIZE = Size(hidden=64, head_dim=16, dtype_bytes=8)
"""Two KV heads to divide, in float64."""

N_REPLAYED = 60
CLOSE = 1e-12
"""Of hidden states in float64, relative to the largest: two ranks add in another order."""

ALONE = Setting(size=SIZE)
ROOMY = Setting(size=SIZE, n_ranks=2, n_base_blocks=120)


@cache
def recorded() -> Record:
    """What one rank was asked and computed, lending all the while."""
    return serve(ALONE, burst())[0]


def renamed() -> list[Entry]:
    """Its first steps without a loan."""
    record, names = recorded(), Renamed()
    last = record.asked[:N_REPLAYED][-1]
    return [names.entry(entry) for entry in record.entries[: record.entries.index(last) + 1]]


def agree(hidden: Iterable[Tensor]) -> bool:
    """Whether the hidden states of every step are those of one rank."""
    pairs = zip(hidden, recorded().asked[:N_REPLAYED], strict=True)
    far = [float((ours - asked.hidden).abs().max() / asked.hidden.abs().max()) for ours, asked in pairs]
    return all(each < CLOSE for each in far)  # NaN is not


def both(stage: Stage) -> list[list[object]]:
    """What the homes of every rank serve as."""
    assert stage.together is not None
    stage.together.wait()
    mine = [stage.staged.memory.homes(model) for model in range(2)]
    return [list(mine), *(list(other.homes) for other in stage.together.others)]


def test_the_schedule_is_one_that_lends_and_restores() -> None:
    ops = recorded().ops
    assert any(isinstance(op, Lend) for op in ops)
    assert any(isinstance(op, Load) for op in ops)


def test_two_ranks_agree_with_one() -> None:
    with open_stage(ROOMY) as stage:
        assert agree(replay(stage, renamed()))


@pytest.mark.parametrize("vmm", ["alias", "range"])
def test_with_another_residency_forced_before_every_step_they_still_agree(vmm: Literal["alias", "range"]) -> None:
    random = Random(2)
    with open_stage(replace(ROOMY, vmm=vmm)) as stage:

        def change(_nth: int) -> None:
            force(stage, *lent(stage, random.randint(0, 2), random.randint(1, 2)))
            first, second = both(stage)
            assert first == second

        assert agree(replay(stage, renamed(), change))


@pytest.mark.parametrize("faulty", [0, 1])
@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize("n_loans", [0, 2])
def test_what_one_rank_refuses_neither_does(faulty: int, out_of_memory: bool, n_loans: int) -> None:
    """In the midst of lending and of taking back, at each driver call; every later step is as if nobody had asked."""
    with open_stage(ROOMY) as stage:
        assert stage.together is not None
        force(stage, *lent(stage, 2 - n_loans, 1))
        before, homes = stage.ledger.residencies, both(stage)
        drivers = [stage.driver, stage.together.others[0].driver]
        mapped = [driver.mappings for driver in drivers]

        def refused(nth: int) -> None:
            drivers[faulty].set_fault(Fault(nth=nth % 12, out_of_memory=out_of_memory))
            with pytest.raises(HbmOverdrawn if out_of_memory else DriverError):
                force(stage, *lent(stage, n_loans, 1))
            assert both(stage) == homes
            assert [driver.mappings for driver in drivers] == mapped
            drivers[faulty].set_fault(None)
            assert stage.ledger.residencies is before

        assert agree(replay(stage, renamed(), refused))


def test_the_refusing_rank_is_named() -> None:
    with open_stage(ROOMY) as stage:
        assert stage.together is not None
        stage.together.others[0].driver.set_fault(Fault(nth=0, out_of_memory=True))
        with pytest.raises(HbmOverdrawn, match=r"rank 1 failed with 999: unmap failed with 999: as commanded"):
            force(stage, *lent(stage, 1, 1))
        stage.together.wait()


def test_a_memory_that_cannot_go_back_on_one_rank_ends_the_run() -> None:
    """A fault that stays: what was unmapped cannot be mapped again, and nobody may go on with such a rank."""
    with pytest.raises(DeviceFailed, match="rank 1 is gone; the run cannot go on"), open_stage(ROOMY) as stage:
        spoil(stage)


def spoil(stage: Stage) -> None:
    assert stage.together is not None
    stage.together.others[0].driver.set_fault(Fault(nth=1, persists=True))
    with pytest.raises(DriverError, match="rank 1 failed"):
        force(stage, *lent(stage, 2, 1))
    both(stage)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(Setting(size=SIZE, n_ranks=2), id="lending"),
        pytest.param(Setting(size=SIZE, n_ranks=2, policy=Swap()), id="swap"),
    ],
)
def test_requests_say_what_they_say_with_one_rank(setting: Setting) -> None:
    arrivals = burst()
    alone, divided = serve(ALONE, arrivals)[2], serve(setting, arrivals)[2]
    for each in arrivals:
        n_tokens = each.request.n_prompt_tokens + each.n_output_tokens
        number = each.request.request_id
        assert list(divided[number][:n_tokens]) == list(alone[number][:n_tokens])
    assert torch.float64.itemsize == SIZE.dtype_bytes
