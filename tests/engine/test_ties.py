"""What comes first at one instant: a finish, then an arrival, then a step is composed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from policies.mirage import Mirage
from policies.serving.tenancy import TemporalSharing
from policies.types import NS_PER_S
from tests.engine.null_backend import Pace
from tests.engine.worlds import SERVING, Setup, TinyModel, World, arrival, serve

SYNC = replace(SERVING, async_output=False, watermark=0)


@pytest.mark.parametrize("world", ["null", "sim"])
def test_a_finish_comes_before_an_arrival_and_an_arrival_before_a_step_is_composed(world: World) -> None:
    setup = Setup(models=(TinyModel(n_base_blocks=4),), serving=SYNC, world=world)
    _, alone = serve(setup, [arrival(0, n_prompt=8, n_output=3)])
    end_ns = alone.steps[-1].end_ns

    needs_all_blocks = arrival(1, end_ns, n_prompt=16, n_output=1)
    _, recorder = serve(setup, [arrival(0, n_prompt=8, n_output=3), needs_all_blocks])
    assert [event for event in recorder.events if event[1] == end_ns] == [
        ("retired", end_ns, [0]),  # its blocks are free
        ("composed", end_ns, [1]),  # and the newcomer has them in the step of that instant
    ]


def test_asynchronously_a_finish_is_known_when_the_step_behind_it_has_been_composed() -> None:
    setup = Setup(models=(TinyModel(n_base_blocks=4),), serving=replace(SYNC, async_output=True), leaps=False)
    _, recorder = serve(setup, [arrival(0, n_prompt=8, n_output=2)])
    decoded_ns, wasted_ns = recorder.steps[1].end_ns, recorder.steps[2].end_ns
    assert recorder.events[-2:] == [("composed", decoded_ns, [0]), ("retired", decoded_ns, [0])]
    assert recorder.requests[0].finish_ns == decoded_ns < wasted_ns


def test_requests_of_one_instant_keep_their_order() -> None:
    _, recorder = serve(Setup(), [arrival(request_id, 70) for request_id in (2, 0, 1)])
    assert recorder.events[0] == ("composed", 70, [2, 0, 1])


def test_a_request_that_arrives_when_a_turn_ends_takes_part_in_the_choice_of_the_next() -> None:
    setup = Setup(models=(TinyModel(), TinyModel()), serving=SYNC)
    alone = [arrival(0, n_prompt=4, n_output=12)]
    ends_ns = [step.end_ns for step in serve(setup, alone)[1].steps]
    setup = replace(setup, tenancy=TemporalSharing(quantum_s=ends_ns[3] / NS_PER_S))
    _, recorder = serve(setup, [*alone, arrival(1, ends_ns[3], n_output=1, model=1)])
    assert [step.lane for step in recorder.steps[:6]] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("leaps", [True, False])
def test_a_turn_that_nobody_contested_ends_with_the_step_in_which_somebody_comes(leaps: bool) -> None:
    setup = Setup(models=(TinyModel(), TinyModel()), serving=SYNC, leaps=leaps)
    setup = replace(setup, tenancy=TemporalSharing(quantum_s=200 / NS_PER_S))
    alone = [arrival(0, n_prompt=4, n_output=12)]
    ends_ns = [step.end_ns for step in serve(setup, alone)[1].steps]
    late_ns = ends_ns[8] + 1
    assert late_ns > 2 * 200  # its turn could have ended several times over
    _, recorder = serve(setup, [*alone, arrival(1, late_ns, n_output=1, model=1)])
    assert [step.lane for step in recorder.steps[8:12]] == [0, 0, 1, 0]


@pytest.mark.parametrize("leaps", [True, False])
def test_by_priority_a_model_keeps_its_turn_only_against_lower_ones(leaps: bool) -> None:
    models = (TinyModel(priority=1), TinyModel(priority=0), TinyModel(priority=2))
    tenancy = TemporalSharing(quantum_s=1 / NS_PER_S, order="priority", priorities=(1, 0, 2))
    setup = Setup(models=models, serving=SYNC, tenancy=tenancy, leaps=leaps)
    longest = arrival(0, n_output=8)
    _, recorder = serve(setup, [longest, arrival(1, 1, model=1), arrival(2, 200, model=2)])
    lanes = [step.lane for step in recorder.steps]
    first_of_2, last_of_2 = lanes.index(2), len(lanes) - 1 - lanes[::-1].index(2)
    assert set(lanes[first_of_2 : last_of_2 + 1]) == {2}
    assert lanes.index(1) == len(lanes) - lanes.count(1)  # the lowest after everybody else


def test_a_load_that_lands_when_a_step_ends_is_published_at_that_instant() -> None:
    models = (TinyModel(n_base_blocks=5), TinyModel())
    policy = Mirage(inactive_bound="cap", lend_from="inactive", hysteresis_steps=1, spare_margin=0)
    setup = Setup(policy=policy, models=models, serving=SYNC, leaps=False)
    arrivals = [arrival(0, n_prompt=12, n_output=12), arrival(1, n_prompt=4, n_output=24)]
    _, recorder = serve(setup, arrivals)
    loads = [at_ns for at_ns, use in recorder.memory if use.loading_bytes]
    assert loads
    ends_ns = [step.end_ns for step in recorder.steps if step.end_ns > loads[0]]
    setup = replace(setup, pace=Pace(load_ns=ends_ns[1] - loads[0]))
    _, recorder = serve(setup, arrivals)
    uses = [(at_ns, use.loading_bytes) for at_ns, use in recorder.memory if use.model == 1]
    landed_ns = [after[0] for before, after in pairwise(uses) if after[1] < before[1]]
    assert landed_ns[0] == ends_ns[1]


def test_a_model_that_gives_up_its_turn_runs_the_checks_that_are_due_first() -> None:
    tenancy = TemporalSharing(quantum_s=1 / NS_PER_S)
    setup = Setup(models=(TinyModel(), TinyModel()), serving=replace(SYNC, async_output=True), tenancy=tenancy)
    _, recorder = serve(setup, [arrival(0, n_output=1), arrival(1, n_output=1, model=1)])
    end_ns = recorder.steps[0].end_ns
    assert recorder.events[1:3] == [("retired", end_ns, [0]), ("composed", end_ns, [1])]


def test_a_request_that_is_dropped_beside_the_last_step_is_told_when_that_has_run() -> None:
    setup = Setup(models=(TinyModel(n_base_blocks=4),), serving=replace(SYNC, async_output=True))
    last_ns = serve(setup, [arrival(0, n_output=2)])[1].steps[1].end_ns
    _, recorder = serve(setup, [arrival(0, n_output=2), arrival(1, last_ns, n_prompt=17)])
    wasted_ns = recorder.steps[2].end_ns  # composed before the check of the last token, with the drop in it
    assert recorder.events[-2:] == [("retired", last_ns, [0]), ("retired", wasted_ns, [1])]


def test_arrivals_that_go_back_in_time_or_share_an_id_are_refused() -> None:
    with pytest.raises(ValueError, match="request 1 arrives at 5 ns, before request 0"):
        serve(Setup(), [arrival(0, 10), arrival(1, 5)])
    with pytest.raises(ValueError, match="request 0 is there already"):
        serve(Setup(), [arrival(0), arrival(0, 1)])
