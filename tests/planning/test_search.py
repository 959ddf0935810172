from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.planning.interval import interval
from conf.planning.search import SPAN, Bracket, Ladder

RATES = st.floats(1 / 500, 500)


@given(limit=RATES, guess=st.floats(1e-3, 1e3), precision=st.sampled_from([0.01, 0.02, 0.1]))
def test_the_bracket_holds_the_limit_and_is_as_narrow_as_asked(limit: float, guess: float, precision: float) -> None:
    found = Ladder(rate_per_s=1.0, precision=precision).limit(lambda rate: rate <= limit, guess)
    assert found.low <= limit < found.high
    assert found.high <= found.low * (1 + precision) * (1 + 1e-9)


@given(limit=RATES, guesses=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=4))
def test_the_guess_changes_nothing(limit: float, guesses: list[float]) -> None:
    ladder = Ladder(rate_per_s=1.0, precision=0.02)
    assert len({ladder.limit(lambda rate: rate <= limit, guess) for guess in guesses}) == 1


def test_what_holds_everywhere_or_nowhere_is_told_so() -> None:
    ladder = Ladder(rate_per_s=2.0, precision=0.02)
    always, never = ladder.limit(lambda _: True, 2.0), ladder.limit(lambda _: False, 2.0)
    assert (always.high, never.low, never.middle) == (inf, 0.0, 0.0)
    assert always.low == pytest.approx(2.0 * SPAN, rel=0.03) == always.middle
    assert never.high == pytest.approx(2.0 / SPAN, rel=0.03)


def test_where_it_breaks_and_holds_again_the_lower_rate_is_found() -> None:
    ladder = Ladder(rate_per_s=1.0, precision=0.02)
    broken = ladder.rate(40), ladder.rate(44)
    found = ladder.limit(lambda rate: rate < ladder.rate(46) and not broken[0] <= rate <= broken[1], ladder.rate(45))
    assert found == Bracket(ladder.rate(39), ladder.rate(40))


def test_no_rate_is_tried_twice() -> None:
    tried: list[float] = []

    def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= 3

    Ladder(rate_per_s=1.0, precision=0.02).limit(holds, 20.0)
    assert len(tried) == len(set(tried)) < 20


def test_an_interval_is_students() -> None:
    # Arithmetic: mean 2, standard deviation 1, three values: 2 +- 4.303 / sqrt(3).
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.high - found.mean) == (2.0, pytest.approx(4.303 / 3**0.5))
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
