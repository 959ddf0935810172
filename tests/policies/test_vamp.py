from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.costs import Coefficients, Option
from policies.memory.experts import ExpertKv, ExpertResidency
from policies.shortage import Shortage, Victim
from policies.types import GIB
from policies.vamp import Vamp
from tests.policies.vamp_worlds import residency, shortage


@st.composite
def residencies(draw: st.DrawFn) -> ExpertResidency:
    tp, percent = draw(st.sampled_from([2, 4])), draw(st.sampled_from([0, 1, 15, 20, 25]))
    return residency(tp, percent, draw(st.integers(0, residency(tp, percent).most_increments)))


@st.composite
def shortages(draw: st.DrawFn) -> Shortage:
    n_blocks = draw(st.integers(1, 60))
    return shortage(
        n_blocks,
        block_tokens=draw(st.sampled_from([272, 544])),
        ages=tuple(draw(st.lists(st.integers(0, 10**5), max_size=n_blocks))),
        n_steps_left=draw(st.one_of(st.none(), st.integers(0, 200))),
        n_preemptable=draw(st.integers(0, n_blocks)),
        hit_rate=draw(st.floats(0, 1)),
        n_partial_tokens=draw(st.integers(0, 271)),
    )


def test_stale_blocks_are_evicted() -> None:
    choice = Vamp().choose(residency(tp=4, percent=20), shortage(31, ages=(10**6,) * 31, n_steps_left=64))
    assert choice.option is Option.EVICT
    assert choice.evict == tuple(range(100, 131))
    assert (choice.n_increments, choice.preempt) == (0, ())


def test_experts_are_offloaded_rather_than_fresh_blocks_evicted() -> None:
    choice = Vamp().choose(residency(tp=4, percent=20), shortage(31, n_steps_left=5))
    assert choice.option is Option.OFFLOAD
    assert (choice.n_increments, choice.evict) == (1, ())


def test_an_offload_may_close_the_whole_gap_at_once() -> None:
    # 31 blocks of 272 tokens are 17 groups: five increments of four.
    choice = Vamp(increments="gap").choose(residency(tp=4, percent=20), shortage(31, n_steps_left=5))
    assert choice.n_increments == 5


def test_the_last_increment_is_cut_to_the_cap() -> None:
    nearly = residency(tp=2, percent=15, n_increments=446)
    assert (nearly.n_groups_left, nearly.most_increments) == (2, 447)
    one_block = shortage(1, block_tokens=544, n_steps_left=1)  # 6.4 MiB: two groups
    assert Vamp(increments="gap").choose(nearly, one_block).n_increments == 447
    two_blocks = shortage(2, block_tokens=544, n_steps_left=1)
    assert Vamp().choose(nearly, two_blocks).option is Option.EVICT


def test_at_the_cap_only_eviction_is_left() -> None:
    full = residency(tp=2, percent=15, n_increments=447)
    costs = Vamp().price(full, shortage(31))
    assert (costs.offload_us, costs.both_us, costs.preempt_us) == (None, None, None)
    assert costs.evict_us is not None


def test_whole_increments_are_offloaded_and_the_rest_evicted_where_that_is_cheaper() -> None:
    # Four increments of 24 MiB hold 30 blocks of 3.19 MiB. One stale block more is cheaper than a 17th group.
    mixed = shortage(31, ages=(10**7,) + (0,) * 30, n_steps_left=5)
    choice = Vamp().choose(residency(tp=4, percent=20), mixed)
    assert choice.option is Option.BOTH
    assert (choice.n_increments, choice.evict) == (4, (100,))


def test_a_request_is_preempted_where_nothing_else_is_as_cheap() -> None:
    cheap = Vamp(coefficients=Coefficients(preempt_us=0.0, queue_us=0.0))
    choice = cheap.choose(residency(tp=4, percent=20), shortage(2, n_preemptable=3))
    assert choice.option is Option.PREEMPT
    assert choice.preempt == (900, 899)


def test_preemption_is_infeasible_when_more_blocks_are_short_than_requests_run() -> None:
    assert Vamp().price(residency(tp=4, percent=20), shortage(3, n_preemptable=2)).preempt_us is None


def test_the_measured_queue_replaces_the_papers_first_guess() -> None:
    short = replace(shortage(1, n_preemptable=1), queue_ns=7_000_000)
    assert Vamp().price(residency(tp=4, percent=20), short).preempt_us == pytest.approx(500 + 7000)


def test_nothing_can_be_done_at_the_cap_with_nothing_to_evict() -> None:
    choice = Vamp(max_offloaded_fraction=0.0).choose(residency(tp=4, percent=0), shortage(3, ages=()))
    assert choice.option is None


def test_measured_coefficients_follow_the_machine() -> None:
    short = replace(shortage(1, n_steps_left=1), prefill_token_ns=53_000.0, shard_fetch_ns=30_000)
    costs = Vamp(measured=True).price(residency(tp=4, percent=20), short)
    assert costs.evict_us == pytest.approx(0.5 * 0.5 * 272 * 53)
    assert costs.offload_us == pytest.approx(4 * 30 * 10 * 10 / 512)


def test_who_knows_the_future_evicts_only_what_is_not_hit_again() -> None:
    known = replace(shortage(1, n_steps_left=64), victims=(Victim(100, 0, is_reused=False),))
    hit = replace(known, victims=(Victim(100, 10**6, is_reused=True),))
    oracle = Vamp(foresight=True)
    assert oracle.choose(residency(tp=4, percent=20), known).option is Option.EVICT
    assert oracle.choose(residency(tp=4, percent=20), hit).option is Option.OFFLOAD
    assert Vamp().choose(residency(tp=4, percent=20), hit).option is Option.EVICT


@given(residencies(), shortages(), st.sampled_from([Vamp(), Vamp(increments="gap")]))
def test_a_choice_is_pure_and_never_exceeds_what_is_there(
    experts: ExpertResidency, short: Shortage, vamp: Vamp
) -> None:
    choice = vamp.choose(experts, short)
    assert vamp.choose(experts, short) == choice
    assert experts.n_increments <= choice.n_increments <= experts.most_increments
    assert len(choice.evict) <= len(short.victims)
    assert len(choice.preempt) <= len(short.preemptable)
    assert (choice.option is None) == (choice.costs.cheapest is None)


@given(residencies(), shortages())
def test_an_offload_of_the_whole_gap_and_both_together_close_it(experts: ExpertResidency, short: Shortage) -> None:
    choice = Vamp(increments="gap").choose(experts, short)
    kv = ExpertKv(base_bytes=8 * GIB, block_bytes=short.block_bytes)
    n_added = kv.n_blocks(experts, choice.n_increments) - kv.n_blocks(experts, experts.n_increments)
    if choice.option in (Option.EVICT, Option.OFFLOAD, Option.BOTH):
        assert n_added + len(choice.evict) >= short.n_blocks
