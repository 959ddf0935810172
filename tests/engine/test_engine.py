"""What always holds, whatever is served how under which policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from policies.engine import Outcome
from policies.serving.sequence import State
from policies.types import Arrival
from tests.engine.auditor import Auditor, CountedLengths, Watched
from tests.engine.recorder import Ended, Recorder, ended
from tests.engine.strategies import cases, thorough
from tests.engine.worlds import Scene, Setup, open_scene, serve


def serve_audited(setup: Setup, arrivals: list[Arrival]) -> tuple[Outcome, Auditor, Scene]:
    """Run with everything checked that can be; a policy that lends is asked twice each time."""
    policy = Watched(setup.policy) if setup.policy.lends else setup.policy
    truth = CountedLengths()
    auditor = Auditor(truth)
    scene = open_scene(replace(setup, policy=policy), auditor, truth)
    auditor.watch(scene, policy)
    return scene.run(arrivals), auditor, scene


@thorough
@given(cases())
def test_books_agree_with_the_world_and_every_request_ends(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    outcome, auditor, scene = serve_audited(setup, arrivals)
    assert outcome is not Outcome.STOPPED
    told = {request.request_id for request in auditor.recorder.requests}
    live = [seq for lane in scene.lanes for seq in lane.scheduler.live()]
    assert len(told) + len(live) == len(arrivals)
    if outcome is Outcome.STUCK:
        assert live
        assert any(seq.state is State.SWAPPED for seq in live) or may_spin(setup)
    else:
        assert not live
        assert all(lane.scheduler.pool.n_used == 0 for lane in scene.lanes)


def may_spin(setup: Setup) -> bool:
    """Without a spare block vLLM's chunked prefill preempts a sequence that fills its pool before every chunk."""
    n_base_blocks = min(model.n_base_blocks for model in setup.models)
    return setup.serving.chunked_prefill and int(setup.serving.watermark * n_base_blocks) == 0


@thorough
@given(cases())
def test_finished_requests_have_their_true_length_and_gaps_add_up(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    recorder = Recorder()
    scene = open_scene(setup, recorder)
    scene.run(arrivals)
    truth = {arrival.request.request_id: arrival.n_output_tokens for arrival in arrivals}
    for request in recorder.requests:
        if request.state is State.FINISHED:
            assert request.n_output == truth[request.request_id]
            assert request.finish_ns == request.last_token_ns
    left = [ended(lane.index, seq) for lane in scene.lanes for seq in lane.scheduler.live()]
    assert gaps_between_tokens(recorder.requests + left) == gaps_told(recorder)


def gaps_between_tokens(requests: list[Ended]) -> list[tuple[int, int, int]]:
    """For each of three models how many gaps there are, their sum and the largest, from what requests say."""
    sums = [(0, 0, 0)] * 3
    for request in requests:
        if request.first_token_ns is not None and request.last_token_ns is not None:
            n, sum_ns, largest_ns = sums[request.model]
            sum_ns += request.last_token_ns - request.first_token_ns
            sums[request.model] = n + request.n_output - 1, sum_ns, max(largest_ns, request.max_gap_ns)
    return sums


def gaps_told(recorder: Recorder) -> list[tuple[int, int, int]]:
    """The same from the histogram."""
    sums = [(0, 0, 0)] * 3
    for (model, _, gap_ns), n_gaps in recorder.gap_counts.items():
        n, sum_ns, largest_ns = sums[model]
        sums[model] = n + n_gaps, sum_ns + n_gaps * gap_ns, max(largest_ns, gap_ns)
    return sums


@thorough
@given(cases())
def test_the_same_arrivals_give_the_same_run(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    first, again = (serve(setup, arrivals) for _ in range(2))
    assert first[0] is again[0]
    assert first[1].tables == again[1].tables
    assert first[1].compositions == again[1].compositions


@thorough
@given(cases())
def test_swapped_bytes_are_charged_to_steps(case: tuple[Setup, list[Arrival]]) -> None:
    setup, arrivals = case
    recorder = Recorder()
    scene = open_scene(setup, recorder)
    scene.run(arrivals)
    n_bytes = {lane.index: lane.block_bytes for lane in scene.lanes}
    swapped = sum((each.n_swapped_in + each.n_swapped_out) * n_bytes[each.lane] for each in recorder.compositions)
    to_come = sum(lane.n_swapped_out * lane.block_bytes for lane in scene.lanes)  # no step came after it
    assert recorder.n_swapped_bytes + to_come == swapped
