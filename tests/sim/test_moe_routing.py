from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.compute.routing import Routing, by_weights, uniform, zipf


@pytest.mark.parametrize(("n_tokens", "n_distinct"), [(1, 10), (48, 313), (64, 367), (128, 471)])
def test_tokens_of_a_step_share_experts_under_uniform_routing(n_tokens: int, n_distinct: int) -> None:
    # Golden: hardware.md 3.1, E (1 - (1 - k/E)^n) for top 10 of 512.
    assert uniform(512, 10).n_distinct(n_tokens) == n_distinct


def test_popular_experts_are_shared_by_more_tokens() -> None:
    flat, mild, steep = (zipf(512, 10, exponent).n_distinct(64) for exponent in (0.0, 0.5, 1.0))
    assert flat == uniform(512, 10).n_distinct(64) > mild > steep


def test_a_token_chooses_an_expert_once_only() -> None:
    # Two of three, one of which has all the weight: it is always chosen, and the others share the second place.
    assert by_weights([100.0, 1.0, 1.0], 2).n_distinct(1) == 2
    assert by_weights([100.0, 1.0, 1.0], 2).n_distinct(1000) == 3


@given(st.integers(1, 8), st.lists(st.integers(1, 100), min_size=8, max_size=40), st.integers(1, 200))
def test_a_step_uses_as_many_experts_as_one_token_and_no_more_than_there_are(
    n_active: int, counts: list[int], n_tokens: int
) -> None:
    routing = by_weights([float(count) for count in counts], n_active)
    assert routing.n_distinct(1) == n_active
    assert n_active <= routing.n_distinct(n_tokens) <= min(len(counts), n_tokens * n_active)


@given(st.integers(1, 100), st.integers(0, 32))
def test_misses_are_among_the_experts_used_and_end_when_all_are_resident(n_tokens: int, n_resident: int) -> None:
    routing = zipf(32, 4, 1.0)
    assert 0 <= routing.n_missed(n_tokens, n_resident) <= routing.n_distinct(n_tokens)
    assert routing.n_missed(n_tokens, 32) == 0
    assert routing.n_missed(n_tokens, 0) == routing.n_distinct(n_tokens)


def test_misses_are_those_of_an_lru_cache() -> None:
    # 2000 steps of one token with two of 24 experts each; three standard deviations of their count are 2 %.
    random, shares = Random(1), [min(1.0, 6 / (rank + 4)) for rank in range(24)]
    recent, n_missed, n_used = list(range(24)), 0, 0
    for _ in range(20_000):
        used = [expert for expert, share in enumerate(shares) if random.random() < share / 4]
        n_missed += sum(1 for expert in used if recent.index(expert) >= 10)
        n_used += len(used)
        recent = [*used, *(expert for expert in recent if expert not in used)]
    many = Routing([share / 4 for share in shares])
    expected = sum(share / 4 for share in shares)
    assert abs(n_used / 20_000 - expected) < 0.1
    assert abs(many.n_missed(1, 10) - n_missed / 20_000) < 0.6  # whole experts


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, 0.0]])
def test_weights_that_nobody_could_choose_by_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="routing: "):
        by_weights(weights, 2)
