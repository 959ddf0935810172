"""A rate that changes by phases keeps the order and the number of arrivals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import NS_PER_S
from traces.workload.phases import Phases

phases = st.integers(1, 4).flatmap(
    lambda n: st.builds(
        Phases,
        lasts_s=st.lists(st.floats(0.5, 20), min_size=n, max_size=n),
        factors=st.lists(st.sampled_from([0.2, 1.0, 3.0]), min_size=n, max_size=n),
    )
)


def times_s(of: Phases, seconds: list[float], shift: float = 0.0) -> list[float]:
    arrivals = [(round(at * NS_PER_S), None) for at in seconds]
    return [at_ns / NS_PER_S for at_ns, _ in of.apply(arrivals, shift)]


@given(phases, st.lists(st.floats(0, 200), max_size=20), st.floats(0, 0.99))
def test_order_and_number_stay(of: Phases, seconds: list[float], shift: float) -> None:
    found = times_s(of, sorted(seconds), shift)
    assert len(found) == len(seconds)
    assert found == sorted(found)
    assert all(at >= -1e-6 for at in found)


@given(phases, st.floats(0, 200))
def test_work_and_time_are_each_others_inverse(of: Phases, at_s: float) -> None:
    assert of.at_s(of.work_s(at_s)) == pytest.approx(at_s, abs=1e-6)


def test_a_tenth_of_the_rate_is_ten_times_as_far_apart() -> None:
    # By hand: ten seconds at the full rate, then a tenth of it.
    assert times_s(Phases(lasts_s=[10, 100], factors=[1, 0.1]), [1, 9, 11, 12]) == pytest.approx([1, 9, 20, 30])


def test_nothing_arrives_while_the_rate_is_zero() -> None:
    of = Phases(lasts_s=[10, 30], factors=[1, 0])
    assert times_s(of, [9, 10.5, 21]) == pytest.approx([9, 40.5, 81])


def test_a_model_ahead_in_the_cycle_begins_in_its_own_phase() -> None:
    of = Phases(lasts_s=[10, 10], factors=[1, 0])
    assert times_s(of, [1, 9], shift=0.5) == pytest.approx([11, 19])


@pytest.mark.parametrize(
    ("lasts_s", "factors", "told"),
    [([1], [1, 2], "has 1"), ([0], [1], "must be positive"), ([1], [-1], "at least 0"), ([1], [0], "not all 0")],
)
def test_phases_that_make_no_sense_are_refused(lasts_s: list[float], factors: list[float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Phases(lasts_s=lasts_s, factors=factors)
