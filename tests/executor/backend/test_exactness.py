"""Wherever the weights of a layer come from, a step computes the same, to the bit.

A schedule is recorded from a run that borrows for its KV cache. It is played again with
other residencies, over memory that holds NaN wherever nothing was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any, Literal, get_args

import pytest
import torch
from torch import Tensor

from executor.memory.masters import Tier
from executor.transfer.slots import Slots
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault
from policies.errors import HbmOverdrawn
from policies.memory.residency import Loan, Target
from policies.remap.grow import target_for
from policies.remap.which_layers import nested_order
from tests.executor.backend.replay import Renamed, force, replay
from tests.executor.backend.stage import Entry, Record, Setting, Stage, World, burst, open_stage, serve
from tests.executor.vmm.worlds import open_cuda

WORLDS = [pytest.param("memfd", id="memfd"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]
VMM: tuple[Literal["alias", "range"], ...] = ("alias", "range")
N_REPLAYED = 80
"""Steps of the schedule that are played again."""

every_world = pytest.mark.parametrize("world", WORLDS)
every_mode = pytest.mark.parametrize("vmm", VMM)
every_tier = pytest.mark.parametrize("tier", get_args(Tier))


@pytest.fixture
def record(world: World) -> Record:
    """A run that lends, reverts and preempts."""
    if world == "cuda":
        open_cuda().close()
    return recorded(world)


@cache
def recorded(world: World) -> Record:
    return serve(Setting(world=world), burst())[0]


def beginning(record: Record) -> list[Entry]:
    """The entries up to the last step that is played again."""
    last = record.asked[:N_REPLAYED][-1]
    return record.entries[: record.entries.index(last) + 1]


def renamed(record: Record) -> list[Entry]:
    """The same without a loan."""
    names = Renamed()
    return [names.entry(entry) for entry in beginning(record)]


def n_different(hidden: Iterable[Tensor], record: Record) -> int:
    """Steps that do not end in the bits of the record."""
    pairs = zip(hidden, record.asked[:N_REPLAYED], strict=True)
    return sum(not torch.equal(ours, asked.hidden) for ours, asked in pairs)


def roomy(world: World, vmm: Literal["alias", "range"], tier: Tier = "host") -> Setting:
    """Base blocks for all that the schedule ever borrowed."""
    return Setting(world=world, vmm=vmm, tier=tier, n_base_blocks=120)


def lent(stage: Stage, n_loans: int, n_slots: int) -> list[Target]:
    """Each model lends so many layers to the other."""
    targets: list[Target] = []
    for model, residency in enumerate(stage.ledger.residencies):
        loans = tuple(Loan(home, 1 - model) for home in nested_order(residency.n_layers)[2 : 2 + n_loans])
        targets.append(target_for(residency, loans, n_slots, "nested"))
    return targets


@every_world
@every_mode
def test_a_run_that_lends_is_the_same_in_both_modes(
    record: Record, world: World, vmm: Literal["alias", "range"]
) -> None:
    with open_stage(Setting(world=world, vmm=vmm)) as stage:
        assert n_different(replay(stage, beginning(record)), record) == 0


@every_world
@every_mode
def test_without_any_loan_it_is_the_same(record: Record, world: World, vmm: Literal["alias", "range"]) -> None:
    with open_stage(roomy(world, vmm)) as stage:
        assert n_different(replay(stage, renamed(record)), record) == 0


@every_world
@every_mode
@pytest.mark.parametrize(("n_loans", "n_slots"), [(1, 1), (2, 1), (2, 2)])
def test_with_lending_forced_all_the_time_it_is_the_same(
    record: Record, world: World, vmm: Literal["alias", "range"], n_loans: int, n_slots: int
) -> None:
    with open_stage(roomy(world, vmm)) as stage:
        force(stage, *lent(stage, n_loans, n_slots))
        assert n_different(replay(stage, renamed(record)), record) == 0


@every_world
@every_mode
@every_tier
def test_with_another_residency_forced_before_every_step_it_is_the_same(
    record: Record, world: World, vmm: Literal["alias", "range"], tier: Tier
) -> None:
    random = Random(1)
    with open_stage(roomy(world, vmm, tier)) as stage:

        def change(_nth: int) -> None:
            n_loans = random.randint(0, 2)
            force(stage, *lent(stage, n_loans, random.randint(1, 2)))

        assert n_different(replay(stage, renamed(record), change), record) == 0


@every_world
@every_tier
@pytest.mark.parametrize("nth", range(6))
def test_one_skipped_fetch_is_noticed(record: Record, world: World, tier: Tier, nth: int) -> None:
    with open_stage(roomy(world, "alias", tier)) as stage:
        force(stage, *lent(stage, 2, 1))
        skip_fetch(stage, nth)
        assert n_different(replay(stage, renamed(record)), record) > 0


def skip_fetch(stage: Stage, nth: int) -> None:
    """From now on leave one fetch out."""
    fetch, count = stage.staged.streams.fetch, iter(range(10**9))

    def skipping(to: Tensor, source: Tensor, after: object = None) -> object:
        return stage.staged.streams.mark() if next(count) == nth else fetch(to, source, after)

    stage.staged.streams.fetch = skipping  # pyright: ignore[reportAttributeAccessIssue]


def hurry(slots: Slots[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a slot to its next layer before the one that enters has run."""
    enter, leave = slots.enter, slots.leave

    def too_early(layer: int) -> int:
        home = enter(layer)
        leave(layer)  # the fetch for the next visit starts now ...
        slots.quiet(home)  # ... and is done before this layer runs
        return home

    def nothing(_layer: int) -> None:
        pass

    monkeypatch.setattr(slots, "enter", too_early)
    monkeypatch.setattr(slots, "leave", nothing)


@every_world
def test_a_slot_that_is_overwritten_one_layer_early_is_noticed(
    record: Record, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_stage(roomy(world, "alias")) as stage:
        for slots in stage.staged.slots:
            hurry(slots, monkeypatch)
        force(stage, *lent(stage, 2, 1))
        assert n_different(replay(stage, renamed(record)), record) > 0


@every_world
@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize("n_loans", [0, 2])
def test_a_change_that_any_driver_call_refuses_changes_no_step(
    record: Record, world: World, out_of_memory: bool, n_loans: int
) -> None:
    """Refused in the midst of lending and of taking back; the books and every later step are as if nobody had asked."""
    entries = renamed(record)
    with open_stage(roomy(world, "range")) as stage:
        force(stage, *lent(stage, 2 - n_loans, 1))
        before = stage.ledger.residencies

        def refused(nth: int) -> None:
            stage.driver.set_fault(Fault(nth=nth % 12, out_of_memory=out_of_memory))
            with pytest.raises(HbmOverdrawn if out_of_memory else DriverError):
                force(stage, *lent(stage, n_loans, 1))
            stage.driver.set_fault(None)
            assert stage.ledger.residencies is before

        assert n_different(replay(stage, entries, refused), record) == 0


def test_the_schedule_is_one_that_borrows() -> None:
    record = recorded("memfd")
    base = Setting().n_base_blocks
    assert any(block >= base for asked in record.asked[:N_REPLAYED] for row in asked.rows for block in row.blocks)
    assert len({asked.lane for asked in record.asked[:N_REPLAYED]}) == 2
