"""Lanes that run side by side: what is in flight with what, and what comes first at one instant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.serving.tenancy import Mig, Mps, Sharing
from tests.engine.bench import FAR_NS, Bench, decode, decode_work, prefill
from tests.engine.worlds import SERVING, Setup, TinyModel, World, arrival, open_scene, serve

SYNC = replace(SERVING, async_output=False, watermark=0)
SHARED = Mps(interference=0.0)
SLICED = Mig(shares=(0.5, 0.5))
TWO = (TinyModel(n_layers=6), TinyModel(n_layers=6))


@pytest.fixture(params=["null", "sim"])
def bench(request: pytest.FixtureRequest) -> Bench:
    scene = open_scene(Setup(models=TWO, tenancy=SLICED, world=request.param))
    return Bench(scene.backend, scene.ledger)


def test_finishes_of_one_instant_are_reported_in_the_order_of_the_lanes(bench: Bench) -> None:
    for lane in (1, 0):
        bench.backend.submit(lane, decode(decode_work()), 1, FAR_NS)
    first = bench.finish()
    second = bench.finish(bench.backend.now_ns)
    assert [first.lane, second.lane] == [0, 1]
    assert first.ends_ns == second.ends_ns == [bench.backend.now_ns]


def test_a_busy_lane_refuses_another_submission(bench: Bench) -> None:
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    with pytest.raises(ValueError, match="lane 0 is busy"):
        bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    bench.backend.submit(1, decode(decode_work()), 1, FAR_NS)


def test_a_batch_with_prefill_tokens_cannot_repeat(bench: Bench) -> None:
    with pytest.raises(ValueError, match="prefill"):
        bench.backend.submit(0, prefill(), 2, FAR_NS)


def test_steps_submitted_together_stop_before_one_that_would_end_too_late(bench: Bench) -> None:
    bench.backend.submit(0, decode(decode_work()), 5, FAR_NS)
    ends_ns = bench.finish().ends_ns
    assert len(ends_ns) == 5
    offset_ns = ends_ns[-1]
    for stop_ns, n_steps in ((ends_ns[2], 3), (ends_ns[2] - 1, 2), (ends_ns[0] - 1, 1), (0, 1)):
        bench.backend.submit(0, decode(decode_work()), 5, offset_ns + stop_ns)
        report = bench.finish()
        assert [end_ns - offset_ns for end_ns in report.ends_ns] == ends_ns[:n_steps]
        offset_ns = report.ends_ns[-1]


def test_nothing_is_launched_ahead_of_simulated_steps_that_run_side_by_side() -> None:
    scene = open_scene(Setup(models=TWO, tenancy=SHARED, world="sim"))
    with pytest.raises(ValueError, match="nothing is launched ahead"):
        scene.backend.submit(0, decode(decode_work()), 1, FAR_NS, 1)


@pytest.mark.parametrize("world", ["null", "sim"])
@pytest.mark.parametrize("sharing", [SHARED, SLICED])
def test_a_request_of_another_model_starts_while_a_step_runs(world: World, sharing: Sharing) -> None:
    setup = Setup(models=TWO, serving=SYNC, tenancy=sharing, world=world)
    _, recorder = serve(setup, [arrival(0, n_prompt=8, n_output=20), arrival(1, 33, model=1)])
    starts_ns = [step.start_ns for step in recorder.steps if step.lane == 1]
    assert starts_ns[0] == 33
    assert not any(step.start_ns == 33 for step in recorder.steps if step.lane == 0)


@pytest.mark.parametrize("world", ["null", "sim"])
def test_at_one_instant_all_finishes_come_before_an_arrival_and_the_lanes_compose_in_their_order(world: World) -> None:
    setup = Setup(models=TWO, serving=SYNC, tenancy=SLICED, world=world)
    both = [arrival(0, n_prompt=8, n_output=2), arrival(1, n_prompt=8, n_output=2, model=1)]
    _, alone = serve(setup, both)
    end_ns = alone.steps[-1].end_ns
    assert {step.end_ns for step in alone.steps[-2:]} == {end_ns}

    late = [arrival(2, end_ns, model=1), arrival(3, end_ns)]
    _, recorder = serve(setup, [*both, *late])
    assert [event for event in recorder.events if event[1] == end_ns] == [
        ("retired", end_ns, [0]),
        ("retired", end_ns, [1]),
        ("composed", end_ns, [3]),
        ("composed", end_ns, [2]),
    ]


def test_two_that_decode_at_once_each_take_longer_than_alone() -> None:
    setup = Setup(models=TWO, serving=SYNC, tenancy=SHARED, world="sim")
    request = arrival(0, n_prompt=8, n_output=12)
    _, alone = serve(setup, [request])
    _, together = serve(setup, [request, arrival(1, n_prompt=8, n_output=12, model=1)])
    assert together.requests[0].last_token_ns is not None
    assert alone.requests[0].last_token_ns is not None
    assert alone.requests[0].last_token_ns < together.requests[0].last_token_ns < 2 * alone.requests[0].last_token_ns
