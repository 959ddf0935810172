"""What every world promises the loop (``policies/backend.py``), whatever its physics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.backend import Change
from tests.engine.bench import FAR_NS, Bench, decode, decode_work, open_bench, prefill
from tests.engine.null_backend import Pace
from tests.engine.worlds import WORLDS, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return request.param


@pytest.fixture
def bench(world: World) -> Bench:
    return open_bench(world)


def test_advance_goes_exactly_to_its_bound_when_nothing_finishes(bench: Bench) -> None:
    for until_ns in (0, 7, 7, 1000):
        assert bench.backend.advance(until_ns) is None
        assert bench.backend.now_ns == until_ns


def test_advance_does_not_go_back(bench: Bench) -> None:
    bench.backend.advance(50)
    assert bench.backend.advance(20) is None
    assert bench.backend.now_ns == 50


def test_advance_without_a_bound_needs_a_submission(bench: Bench) -> None:
    with pytest.raises(ValueError, match="nothing is in flight"):
        bench.backend.advance(None)


def test_a_finish_at_the_bound_is_reported_and_one_behind_it_is_not(bench: Bench) -> None:
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    (end_ns,) = bench.finish().ends_ns
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    assert bench.backend.advance(2 * end_ns - 1) is None
    assert bench.backend.now_ns == 2 * end_ns - 1
    assert bench.finish(2 * end_ns).ends_ns == [2 * end_ns]
    assert bench.backend.now_ns == 2 * end_ns


def test_a_busy_lane_refuses_another_submission_and_the_other_lane_does_not(bench: Bench) -> None:
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    with pytest.raises(ValueError, match="lane 0 is busy"):
        bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    bench.backend.submit(1, decode(decode_work(n_seqs=1)), 1, FAR_NS)
    reports = bench.finish(), bench.finish()
    assert [report.lane for report in reports] == [1, 0]  # the shorter step first: they ran side by side
    assert {report.start_ns for report in reports} == {0}


def test_two_finishes_at_one_instant_are_reported_one_after_the_other(bench: Bench) -> None:
    for lane in (1, 0):
        bench.backend.submit(lane, decode(decode_work()), 1, FAR_NS)
    first = bench.finish()
    now_ns = bench.backend.now_ns
    second = bench.finish(now_ns)
    assert [first.lane, second.lane] == [1, 0]
    assert first.ends_ns == second.ends_ns == [now_ns] == [bench.backend.now_ns]


def test_a_lane_is_free_once_its_report_is_taken(bench: Bench) -> None:
    for _ in range(3):
        bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
        bench.finish()


def test_a_batch_with_prefill_tokens_cannot_repeat(bench: Bench) -> None:
    with pytest.raises(ValueError, match="prefill"):
        bench.backend.submit(0, prefill(), 2, FAR_NS)
    bench.backend.submit(0, prefill(), 1, FAR_NS)  # nothing was started by the refusal
    assert len(bench.finish().ends_ns) == 1


@given(st.sampled_from(WORLDS), st.integers(1, 12), st.integers(-100, 3000))
def test_a_submission_stops_after_the_first_step_that_ends_at_or_after_its_bound(
    world: World, n_steps: int, stop_ns: int
) -> None:
    ends_ns = [end_ns for end_ns, *_ in open_bench(world).run(decode_work(), n_steps, leap=1)]
    bench = open_bench(world)
    bench.backend.submit(0, decode(decode_work()), n_steps, stop_ns)
    n_due = sum(end_ns < stop_ns for end_ns in ends_ns) + 1
    assert bench.finish().ends_ns == ends_ns[:n_due]


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_step_that_ends_exactly_at_the_bound_is_the_last(world: World, nth: int) -> None:
    ends_ns = [end_ns for end_ns, *_ in open_bench(world).run(decode_work(), 4, leap=1)]
    bench = open_bench(world)
    bench.backend.submit(0, decode(decode_work()), 4, ends_ns[nth])
    assert bench.finish().ends_ns == ends_ns[: nth + 1]


@given(
    world=st.sampled_from(WORLDS),
    n_loans=st.integers(0, 3),
    n_slots=st.sampled_from([1, 2]),
    n_returning=st.integers(0, 3),
    fetch_ns=st.integers(1, 60),
    load_ns=st.integers(1, 700),
    leap=st.integers(2, 9),
)
def test_steps_submitted_together_take_what_single_steps_take_to_the_nanosecond(
    world: World, n_loans: int, n_slots: int, n_returning: int, fetch_ns: int, load_ns: int, leap: int
) -> None:
    """Also while layers cycle, and while layers that return land in the midst of it."""

    def play(leap: int) -> list[tuple[int, int, int, int]]:
        bench = open_bench(world, Pace(fetch_ns=fetch_ns, load_ns=load_ns))
        bench.lend(n_loans, n_slots)
        rows = bench.run(decode_work(), 3, leap)
        bench.lend(max(0, n_loans - n_returning), n_slots)
        return rows + bench.run(decode_work(n_seqs=3), 12, leap)

    assert play(leap) == play(1)


@given(st.sampled_from(WORLDS), st.integers(0, 3), st.sampled_from([1, 2]), st.integers(1, 60))
def test_a_step_lasts_as_long_as_its_parts(world: World, n_loans: int, n_slots: int, fetch_ns: int) -> None:
    bench = open_bench(world, Pace(fetch_ns=fetch_ns, remap_ns=5))
    bench.lend(n_loans, n_slots)
    bench.backend.submit(0, decode(decode_work(), swap_in=32), 3, FAR_NS)
    report = bench.finish()
    begins_ns = [report.start_ns + report.swap_ns + report.remap_ns, *report.ends_ns]
    parts = zip(report.compute_ns, report.stall_ns, report.rest_ns, strict=True)
    for begin_ns, end_ns, durations in zip(begins_ns, report.ends_ns, parts, strict=False):
        assert end_ns - begin_ns == sum(durations)
        assert min(durations) >= 0


def test_cycling_layers_leave_the_compute_time_of_a_step_as_it_is(world: World) -> None:
    at_home, lent = open_bench(world), open_bench(world, Pace(fetch_ns=500))
    lent.lend(3)
    compute_ns = [[step[1] for step in bench.run(decode_work(), 4, leap=4)] for bench in (at_home, lent)]
    assert compute_ns[0] == compute_ns[1]
    assert sum(step[2] for step in lent.run(decode_work(), 4, leap=4)) > 0


def test_a_load_is_told_once_when_it_is_complete_and_in_order(bench: Bench) -> None:
    bench.lend(3)
    bench.settle()
    bench.lend(0)
    loading = [layer for layer, _ in bench.ledger.residencies[0].loading]
    assert len(loading) > 1
    assert bench.backend.landed() == ()  # no time has passed
    assert bench.settle() == loading
    assert bench.backend.landed() == ()
    bench.backend.advance(FAR_NS)
    assert bench.backend.landed() == ()


def test_a_submission_ends_with_the_first_step_in_which_a_load_lands(world: World) -> None:
    bench = open_bench(world, Pace(load_ns=250, fetch_ns=130))
    bench.lend(2)
    bench.run(decode_work(), 2, leap=1)
    bench.lend(0)
    n_reports = 0
    while bench.ledger.residencies[0].loading:
        bench.backend.submit(0, decode(decode_work()), 1000, FAR_NS)
        n_steps = len(bench.finish().ends_ns)
        landed = bench.backend.landed()
        assert landed
        assert n_steps < 1000
        for model, layer in landed:
            bench.backend.apply(Change(bench.ledger.land(model, layer)))
        n_reports += 1
    assert n_reports >= 1


@pytest.mark.parametrize("n_loans", [1, 2])
def test_changed_mappings_delay_the_next_step_once(world: World, n_loans: int) -> None:
    bench = open_bench(world, Pace(remap_ns=1000, fetch_ns=1))
    bench.lend(n_loans)
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    assert bench.finish().remap_ns == n_loans * 1000
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    assert bench.finish().remap_ns == 0


def test_swapped_kv_crosses_before_the_step_and_only_then(bench: Bench) -> None:
    bench.backend.submit(0, decode(decode_work()), 2, FAR_NS)
    alone = bench.finish()
    bench.backend.submit(0, decode(decode_work(), swap_in=320), 2, FAR_NS)
    swapping = bench.finish()
    assert alone.swap_ns == 0
    assert swapping.swap_ns > 0
    lengths_ns = [[end_ns - report.start_ns for end_ns in report.ends_ns] for report in (alone, swapping)]
    assert [after - before for before, after in zip(*lengths_ns, strict=True)] == [swapping.swap_ns] * 2


@given(st.sampled_from(WORLDS), st.lists(st.sampled_from(["submit", "advance", "lend", "revert"]), max_size=20))
def test_the_present_never_goes_back(world: World, calls: list[str]) -> None:
    bench, busy, last_ns = open_bench(world), False, 0
    for call in calls:
        if call == "submit" and not busy:
            bench.backend.submit(0, decode(decode_work()), 3, bench.backend.now_ns + 200)
            busy = True
        elif call == "advance":
            busy = bench.backend.advance(bench.backend.now_ns + 150) is None and busy
        elif not busy and not bench.ledger.residencies[0].loading:
            bench.lend(1 if call == "lend" else 0)
        assert bench.backend.now_ns >= last_ns
        last_ns = bench.backend.now_ns
