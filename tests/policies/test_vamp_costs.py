from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.costs import (
    Coefficients,
    Costs,
    Option,
    eviction_us,
    offload_us,
    preemption_us,
    reuse_probability,
    steps_to_charge,
)
from policies.vamp import Vamp
from tests.policies.vamp_worlds import residency, shortage

PAPER = Coefficients()


def test_one_more_shard_costs_12_3_us_a_step() -> None:
    # Golden: VAMP section V, c_eff = c_reload k / E = 0.63 ms x 10 / 512.
    assert offload_us(1, 512, 10, 1, PAPER) == pytest.approx(12.3, abs=0.01)


def test_the_median_offload_of_the_paper_costs_52_7_ms() -> None:
    # Golden: VAMP VI-D. A chunk of 8192 tokens is 31 blocks of 272 tokens, 17 groups of 6 MiB, 68 shards.
    costs = Vamp().price(residency(tp=4, percent=20), shortage(31, n_steps_left=63))
    assert costs.offload_us is not None
    assert costs.offload_us / 1000 == pytest.approx(52.7, abs=0.05)
    assert costs.offload_us == offload_us(68, 512, 10, 63, PAPER)


def test_no_more_experts_can_be_missed_in_a_layer_than_it_has() -> None:
    assert offload_us(513, 512, 10, 1, PAPER) == offload_us(512, 512, 10, 1, PAPER)


@pytest.mark.parametrize(("n_left", "charged"), [(None, 64), (0, 1), (1, 1), (63, 63), (64, 64), (500, 64)])
def test_an_offload_is_charged_for_1_to_64_steps(n_left: int | None, charged: int) -> None:
    assert steps_to_charge(n_left, PAPER) == charged


def test_a_block_released_2000_steps_ago_is_half_as_likely_to_be_hit() -> None:
    # Golden: VAMP section V, p_eff = 0.5 r_hit / (1 + age / 2000).
    assert reuse_probability(0, 0.8, PAPER) == pytest.approx(0.4)
    assert reuse_probability(2000, 0.8, PAPER) == pytest.approx(0.2)


def test_evicting_a_block_risks_the_prefill_of_its_tokens() -> None:
    assert eviction_us([0.25, 0.25], 272, PAPER) == pytest.approx(0.5 * 272 * 15)
    assert eviction_us([0.25, 0.25], 272, Coefficients(evict_us=500.0)) == pytest.approx(0.5 * (272 * 15 + 500))


def test_a_preemption_frees_one_block_and_loses_a_partial_one() -> None:
    assert preemption_us(3, 100, 1000.0, PAPER) == pytest.approx(3 * (500 + 1000 + 100 * 15))


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), min_size=4, max_size=4))
def test_the_cheapest_feasible_option_is_taken_and_ties_go_to_the_first(prices: list[float | None]) -> None:
    costs = Costs(evict_us=prices[0], offload_us=prices[1], both_us=prices[2], preempt_us=prices[3])
    feasible = [(price, nth) for nth, price in enumerate(prices) if price is not None]
    assert costs.cheapest == (list(Option)[min(feasible)[1]] if feasible else None)


@pytest.mark.parametrize(
    "change", [{"reload_us": -1.0}, {"reuse_decay_steps": 0.0}, {"least_steps": 9, "most_steps": 8}]
)
def test_coefficients_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Coefficients(**change)  # pyright: ignore[reportArgumentType]
