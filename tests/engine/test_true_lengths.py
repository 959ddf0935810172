"""No decision knows how long an answer will really be: worlds that differ in nothing else agree until it shows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies.types import Arrival
from tests.engine.recorder import Recorder
from tests.engine.strategies import cases, thorough
from tests.engine.worlds import Setup, serve

NEVER_NS = 2**62


def with_other_lengths(arrivals: list[Arrival], rng: Random) -> list[Arrival]:
    """The same requests with the same declared limits, most of which really stop elsewhere."""
    return [replace(arrival, n_output_tokens=rng.randint(1, arrival.request.max_output_tokens)) for arrival in arrivals]


def first_difference_ns(runs: list[tuple[list[Arrival], Recorder]]) -> int:
    """When one world sees the last token of a request that goes on in the other."""
    (arrivals, _), (others, _) = runs
    differing = {a.request.request_id for a, b in zip(arrivals, others, strict=True) if a != b}
    ends_ns = [
        request.last_token_ns
        for _, recorder in runs
        for request in recorder.requests
        if request.request_id in differing and request.last_token_ns is not None
    ]
    return min(ends_ns, default=NEVER_NS)


def everything_before(recorder: Recorder, until_ns: int) -> tuple[object, ...]:
    """All that was decided, composed, run and told before an instant."""
    return (
        [each for each in recorder.decisions if each.at_ns < until_ns],
        [each for each in recorder.compositions if each.at_ns < until_ns],
        [each for each in recorder.steps if each.end_ns <= until_ns],
        [each for each in recorder.memory if each[0] < until_ns],
        [each for each in recorder.requests if each.finish_ns is not None and each.finish_ns < until_ns],
    )


@thorough
@given(cases(), st.integers(0, 2**20))
def test_until_a_true_length_shows_it_has_changed_nothing(case: tuple[Setup, list[Arrival]], seed: int) -> None:
    setup, arrivals = case
    setup = replace(setup, leaps=False)  # so that compositions can be compared; tables are the same with leaps
    others = with_other_lengths(arrivals, Random(seed))
    runs = [(each, serve(setup, each)[1]) for each in (arrivals, others)]
    until_ns = first_difference_ns(runs)
    assert everything_before(runs[0][1], until_ns) == everything_before(runs[1][1], until_ns)
