from __future__ import annotations

import heapq
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.types import Arrival
from tests.traces.test_workload import POISSON, SHAREGPT, shape
from traces.workload.agents import Agents
from traces.workload.lengths import LengthSettings
from traces.workload.workload import WorkloadSettings, workload


def agents(n_models: int = 3, seed: int = 5, n_requests: int = 40, overlong: str = "clip") -> Agents:
    chosen = WorkloadSettings(agents=True, n_requests=n_requests, overlong=overlong)
    shapes = [shape(f"m{model}", 2048) for model in range(n_models)]
    return Agents(whole=workload(arrivals=POISSON, lengths=SHAREGPT, settings=chosen, seed=seed, shapes=shapes))


def served(made: Agents, rng: Random) -> list[Arrival]:
    """All requests, each finished some time after it arrived: who comes first is up to the draw."""
    queue = [(arrival.request.arrival_ns, arrival.request.request_id, arrival) for arrival in made.arrivals()]
    heapq.heapify(queue)
    done: list[Arrival] = []
    while queue:
        arrival_ns, _, arrival = heapq.heappop(queue)
        done.append(arrival)
        for after in made.follow(arrival.request, arrival_ns + rng.randrange(10**10)):
            heapq.heappush(queue, (after.request.arrival_ns, after.request.request_id, after))
    return done


@settings(max_examples=30)
@given(n_models=st.integers(1, 4), seed=st.integers(0, 2**30), pace=st.integers(0, 2**30))
def test_each_answer_is_the_next_prompt_until_the_last_model(n_models: int, seed: int, pace: int) -> None:
    by_id = {arrival.request.request_id: arrival for arrival in served(agents(n_models, seed), Random(pace))}
    assert sorted(by_id) == list(range(40 * n_models))
    for request_id, arrival in by_id.items():
        assert arrival.request.model == request_id % n_models
        if arrival.request.model:
            before = by_id[request_id - 1]
            assert arrival.request.n_prompt_tokens == min(before.n_output_tokens, 2047)
            assert arrival.request.arrival_ns >= before.request.arrival_ns


@given(one=st.integers(0, 2**30), two=st.integers(0, 2**30))
def test_rows_are_the_same_however_fast_they_are_served(one: int, two: int) -> None:
    def sizes(pace: int) -> dict[int, tuple[int, int]]:
        done = served(agents(overlong="drop"), Random(pace))
        return {each.request.request_id: (each.request.n_prompt_tokens, each.n_output_tokens) for each in done}

    assert sizes(one) == sizes(two)


def test_a_request_that_is_too_long_ends_its_row() -> None:
    long = LengthSettings(kind="constant", n_prompt_tokens=1, n_output_tokens=2000)
    chosen = WorkloadSettings(agents=True, n_requests=3)
    shapes = [shape("first", 2048), shape("second", 2048), shape("third", 2048)]
    made = Agents(whole=workload(arrivals=POISSON, lengths=long, settings=chosen, seed=0, shapes=shapes))
    first = [arrival.request for arrival in made.arrivals()]
    assert [request.request_id for request in first] == [0, 3, 6]
    assert [list(made.follow(request, 10**12)) for request in first] == [[], [], []]


def test_agents_without_lengths_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="leave weights and division as they are"):
        WorkloadSettings(agents=True, n_requests=1, weights=[1, 1])
    with pytest.raises(ValueError, match="leave weights and division as they are"):
        WorkloadSettings(agents=True, n_requests=1, division="per_model")
