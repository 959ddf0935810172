"""What arrives next, listed or brought about by a finish."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.backend import Batch, StepReport
from policies.incoming import NEVER, Incoming
from policies.types import Arrival, Request, Work
from sim.under_way import UnderWay
from tests.engine.worlds import arrival


def drained(incoming: Incoming) -> list[tuple[int, int]]:
    """(when, who) of all that is known, in the order in which it is taken."""
    taken: list[tuple[int, int]] = []
    while incoming.next_ns != NEVER:
        at_ns, got = incoming.next_ns, incoming.pop()
        assert got.request.arrival_ns == at_ns
        taken.append((at_ns, got.request.request_id))
    return taken


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_arrivals_come_in_order_of_time_and_listed_ones_before_those_that_follow(
    listed: list[int], following: list[int]
) -> None:
    followers = [arrival(100 + nth, at_ns) for nth, at_ns in enumerate(following)]
    incoming = Incoming(lambda _request, _finish_ns: followers)
    incoming.open(iter([arrival(nth, at_ns) for nth, at_ns in enumerate(sorted(listed))]))
    incoming.finished(arrival(99).request, 0)
    expected = [(at_ns, nth) for nth, at_ns in enumerate(sorted(listed))]
    expected += [(at_ns, 100 + nth) for nth, at_ns in enumerate(following)]
    assert drained(incoming) == sorted(expected, key=lambda each: (each[0], each[1] >= 100))


def test_a_list_that_goes_back_in_time_is_refused() -> None:
    incoming = Incoming()
    incoming.open(iter([arrival(0, 5), arrival(1, 3)]))
    with pytest.raises(ValueError, match="request 1 arrives at 3 ns, before request 0"):
        incoming.pop()


def test_what_follows_is_asked_for_with_the_finish() -> None:
    asked: list[tuple[int, int]] = []

    def follow(request: Request, finish_ns: int) -> Iterable[Arrival]:
        asked.append((request.request_id, finish_ns))
        return [arrival(7, finish_ns + 10)]

    incoming = Incoming(follow)
    incoming.open(iter([]))
    incoming.finished(arrival(3).request, 40)
    assert asked == [(3, 40)]
    assert drained(incoming) == [(50, 7)]


def _batch(n_prefill_tokens: int = 0) -> Batch:
    return Batch(Work(n_prefill_tokens, int(n_prefill_tokens > 0), 0, 1, 1, 1))


def _report(start_ns: int, *ends_ns: int) -> StepReport:
    zeros = [0] * len(ends_ns)
    return StepReport(0, start_ns, list(ends_ns), zeros, zeros, zeros)


def test_the_last_step_of_a_submission_is_reported_by_itself_if_steps_are_launched_ahead() -> None:
    under_way = UnderWay()
    assert under_way.begin(0, _batch(), 1, 1, 0) == 0
    under_way.put(_report(0, 10))
    assert under_way.begin(0, _batch(), 3, 1, 0) == 10  # behind the first
    under_way.put(_report(10, 20, 30, 40))
    reports = [under_way.take(None) for _ in range(3)]
    assert [report.ends_ns for report in reports if report] == [[10], [20, 30], [40]]
    assert [report.n_under_way for report in reports if report] == [2, 1, 0]
    with pytest.raises(ValueError, match="nothing is in flight"):
        under_way.take(None)


def test_a_busy_lane_and_prompts_that_would_repeat_are_refused() -> None:
    under_way = UnderWay()
    with pytest.raises(ValueError, match="cannot repeat"):
        under_way.begin(0, _batch(5), 2, 0, 0)
    under_way.begin(0, _batch(), 1, 0, 0)
    under_way.put(_report(0, 10))
    with pytest.raises(ValueError, match="is busy"):
        under_way.begin(0, _batch(), 1, 0, 0)
    assert under_way.take(9) is None
    assert under_way.next_end_ns == 10


@pytest.mark.parametrize(("n_ahead", "launched"), [(0, [True, False, False]), (1, [True, True, False])])
def test_another_step_is_launched_until_the_last_that_has_ended_is_late_enough(
    n_ahead: int, launched: list[bool]
) -> None:
    under_way = UnderWay()
    under_way.begin(0, _batch(), 9, n_ahead, 0)
    assert [under_way.goes_on(0, [10, 20, 30][:n], 15) for n in (1, 2, 3)] == launched
