"""Submitting identical steps together changes nothing that results hold."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from policies.types import Arrival
from tests.engine import moe_worlds
from tests.engine.moe_worlds import MoeSetup
from tests.engine.strategies import cases, thorough
from tests.engine.worlds import Setup, serve
from traces.sessions.sessions import Session


@thorough
@given(cases())
def test_leaps_on_and_off_leave_the_same_tables(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    leaping, one_by_one = (serve(replace(setup, leaps=leaps), arrivals) for leaps in (True, False))
    assert leaping[0] is one_by_one[0]
    assert leaping[1].tables == one_by_one[1].tables


@thorough
@given(cases(scheduler="vllm_v1"))
def test_leaps_on_and_off_leave_the_same_tables_with_a_step_under_way_too(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    leaping, one_by_one = (serve(replace(setup, leaps=leaps), arrivals) for leaps in (True, False))
    assert leaping[0] is one_by_one[0]
    assert leaping[1].tables == one_by_one[1].tables


@thorough
@given(moe_worlds.cases())
def test_leaps_on_and_off_leave_the_same_tables_of_sessions_served_by_experts(
    case: tuple[MoeSetup, list[Session]],
) -> None:
    setup, sessions = case
    leaping, one_by_one = (moe_worlds.serve(each, sessions) for each in (setup, moe_worlds.without_leaps(setup)))
    assert leaping[0] is one_by_one[0]
    assert leaping[1].tables == one_by_one[1].tables


@thorough
@given(cases())
def test_counting_together_or_each_by_itself_leaves_the_same_tables(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    together, apart = (serve(replace(setup, lockstep=lockstep), arrivals) for lockstep in (True, False))
    assert together[0] is apart[0]
    assert together[1].tables == apart[1].tables
