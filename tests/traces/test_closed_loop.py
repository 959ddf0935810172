from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import Arrival
from traces.sessions.closed_loop import ClosedLoop, equal_sessions, spread_out
from traces.sessions.sessions import Session, Turn

ANSWER_NS = 7


def three_turns(think_ns: int = 100) -> Iterator[Session]:
    return equal_sessions(3, n_turns=3, first_tokens=20, added_tokens=5, output_tokens=4, think_ns=think_ns)


def served(loop: ClosedLoop) -> list[Arrival]:
    """All arrivals when every request takes ``ANSWER_NS``, in order of time."""
    waiting, seen = list(loop.first_turns()), list[Arrival]()
    while waiting:
        waiting.sort(key=lambda arrival: (arrival.request.arrival_ns, arrival.request.request_id))
        seen.append(waiting.pop(0))
        waiting += loop.follow(seen[-1].request, seen[-1].request.arrival_ns + ANSWER_NS)
    return seen


def test_a_turn_comes_when_its_user_has_thought() -> None:
    arrivals = served(ClosedLoop(three_turns(), max_context_tokens=1000))
    times = {arrival.request.request_id: arrival.request.arrival_ns for arrival in arrivals}
    assert times == {i: (i % 3) * (ANSWER_NS + 100) for i in range(9)}


def test_a_prompt_is_the_one_before_its_answer_and_something_new() -> None:
    arrivals = {a.request.request_id: a.request for a in served(ClosedLoop(three_turns(), max_context_tokens=1000))}
    assert arrivals[3].prompt == (("s1.0", 20),)
    assert arrivals[4].prompt == (("s1.0", 20), ("out3", 4), ("s1.1", 5))
    assert arrivals[5].prompt == (("s1.0", 20), ("out3", 4), ("s1.1", 5), ("out4", 4), ("s1.2", 5))


def test_the_next_session_begins_when_one_of_those_side_by_side_ends() -> None:
    arrivals = served(ClosedLoop(three_turns(think_ns=0), max_context_tokens=1000, n_at_once=1))
    assert [a.request.request_id for a in arrivals] == list(range(9))
    assert [a.request.arrival_ns for a in arrivals] == [i * ANSWER_NS for i in range(9)]


def test_nothing_arrives_at_the_end_of_the_window_or_later() -> None:
    loop = ClosedLoop(three_turns(), max_context_tokens=1000, end_ns=ANSWER_NS + 100)
    assert len(served(loop)) == loop.n_issued == 3


def test_a_session_ends_where_its_context_is_full() -> None:
    loop = ClosedLoop(three_turns(), max_context_tokens=35)  # the third turn would have 38 and 4 tokens
    assert len(served(loop)) == 6
    assert loop.n_cut == 3


def test_a_session_that_is_too_long_from_the_start_makes_room_for_the_next() -> None:
    long = Session(
        name="long",
        start_ns=None,
        turns=(Turn(n_prompt_tokens=99, n_new_tokens=99, n_output_tokens=1, keeps="nothing", think_ns=0),),
    )
    loop = ClosedLoop([long, *three_turns()], max_context_tokens=90, n_at_once=1)
    assert [arrival.request.request_id for arrival in served(loop)] == list(range(1, 10))


def test_an_oracle_knows_which_turns_are_continued() -> None:
    loop = ClosedLoop(three_turns(), max_context_tokens=35)
    served(loop)
    assert [loop.is_continued(request_id) for request_id in (0, 1, 3, 4)] == [True, False, True, False]


def test_more_may_be_declared_than_comes() -> None:
    (first, *_) = ClosedLoop(three_turns(), max_context_tokens=1000, declared_tokens=64).first_turns()
    assert (first.request.max_output_tokens, first.n_output_tokens) == (64, 4)


def test_recorded_starts_must_be_in_order() -> None:
    turns = next(three_turns()).turns
    late, early = (Session(name=f"{ns}", start_ns=ns, turns=turns) for ns in (5, 3))
    with pytest.raises(ValueError, match="session 3 begins at 3 ns, after one at 5"):
        list(ClosedLoop([late, early], max_context_tokens=1000).first_turns())


@given(st.integers(0, 6), st.one_of(st.none(), st.integers(1, 8)), st.integers(0, 50))
def test_every_turn_is_issued_once_whatever_the_number_side_by_side(
    n_sessions: int, n_at_once: int | None, think_ns: int
) -> None:
    sessions = equal_sessions(n_sessions, n_turns=3, first_tokens=2, added_tokens=0, output_tokens=1, think_ns=think_ns)
    arrivals = served(ClosedLoop(sessions, max_context_tokens=100, n_at_once=n_at_once))
    assert sorted(arrival.request.request_id for arrival in arrivals) == list(range(3 * n_sessions))


def test_sessions_without_a_token_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        list(equal_sessions(1, n_turns=1, first_tokens=0, added_tokens=0, output_tokens=1))
    with pytest.raises(ValueError, match="n_at_once=0"):
        ClosedLoop([], max_context_tokens=1, n_at_once=0)


@given(st.integers(1, 10**6), st.integers(1, 40), st.floats(0, 1), st.integers(0, 99))
def test_numbers_that_are_spread_out_keep_their_sum(mean: int, n: int, spread: float, seed: int) -> None:
    numbers = spread_out(mean, n, spread, np.random.default_rng(seed))
    assert sum(numbers) == mean * n
    assert min(numbers) >= 0
    assert max(numbers) - min(numbers) == 0 or spread > 0


def test_numbers_that_are_spread_out_need_a_generator() -> None:
    with pytest.raises(ValueError, match="generator"):
        spread_out(100, 3, 0.5, None)
