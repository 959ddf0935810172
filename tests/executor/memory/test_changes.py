"""Whatever the ledger plans is carried out on real pages, wholly or not at all."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from executor.memory.homes import Homes
from executor.memory.ranges import LendMode
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault
from policies.errors import HbmOverdrawn
from policies.memory.ops import Lend, Op, Withdraw
from tests.executor.memory.scenes import Scene, open_scene
from tests.executor.memory.strategies import targets

MODES = list(LendMode)
on_a_gpu = settings(max_examples=4, phases=[Phase.generate], derandomize=True, database=None)
"""Pinning takes long there, and shrinking is for the CPU, which runs the same."""


def draw_change(data: st.DataObject, scene: Scene) -> bool:
    """Ask for random targets; whether the ledger could plan them and they were carried out."""
    residencies = scene.ledger.residencies
    wanted = [data.draw(targets(residency, len(residencies))) for residency in residencies]
    try:
        scene.enact(*wanted)
    except HbmOverdrawn:
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60)
@given(data=st.data())
def test_every_byte_is_where_the_ledger_says_after_every_change(mode: LendMode, data: st.DataObject) -> None:
    change_and_check("memfd", mode, data)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@on_a_gpu
@given(data=st.data())
def test_every_byte_is_where_the_ledger_says_on_a_gpu(mode: LendMode, data: st.DataObject) -> None:
    change_and_check("cuda", mode, data)


def change_and_check(world: str, mode: LendMode, data: st.DataObject) -> None:
    with open_scene(world, mode) as scene:
        scene.check()
        for _ in range(data.draw(st.integers(1, 6))):
            draw_change(data, scene)
            scene.check()
            if data.draw(st.booleans()):
                scene.land_all()
                scene.check()


def snapshot(scene: Scene) -> tuple[object, ...]:
    """All that a refused change must leave as it was, but for the bytes."""
    homes: list[Homes] = [scene.memory.homes(model) for model in range(len(scene.memory.models))]
    return scene.driver.live, scene.driver.mappings, homes


@settings(max_examples=30)
@given(data=st.data(), out_of_memory=st.booleans())
def test_a_change_that_any_driver_call_refuses_leaves_everything_as_it_was(
    data: st.DataObject, out_of_memory: bool
) -> None:
    refuse_each_call("memfd", data, out_of_memory)


@pytest.mark.gpu
@on_a_gpu
@given(data=st.data(), out_of_memory=st.booleans())
def test_a_change_that_any_driver_call_refuses_leaves_a_gpu_as_it_was(data: st.DataObject, out_of_memory: bool) -> None:
    refuse_each_call("cuda", data, out_of_memory)


def refuse_each_call(world: str, data: st.DataObject, out_of_memory: bool) -> None:
    with open_scene(world, LendMode.REMAP) as scene:
        for _ in range(data.draw(st.integers(0, 2))):
            draw_change(data, scene)
            scene.land_all()
        ops = draw_ops(data, scene)
        before = snapshot(scene)
        for nth in range(3 * len(ops)):  # a home that changes hands takes three calls
            scene.driver.set_fault(Fault(nth=nth, out_of_memory=out_of_memory))
            if is_refused(scene, ops, HbmOverdrawn if out_of_memory else DriverError):
                assert snapshot(scene) == before
                scene.check()
                continue
            assert nth == sum(3 for op in ops if isinstance(op, Lend | Withdraw))
            break


def draw_ops(data: st.DataObject, scene: Scene) -> tuple[Op, ...]:
    residencies = scene.ledger.residencies
    try:
        return scene.plan(*(data.draw(targets(residency, len(residencies))) for residency in residencies))
    except HbmOverdrawn:
        reject()


def is_refused(scene: Scene, ops: tuple[Op, ...], expected: type[Exception]) -> bool:
    try:
        scene.memory.apply(ops, scene.mover)
    except expected:
        return True
    return False
