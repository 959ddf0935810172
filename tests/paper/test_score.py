"""Scores by their rules: what remains, points below ten percent, orderings, ranges, duplicates, refutations."""

from __future__ import annotations

from math import isclose, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.paper.catalog import entry_from
from conf.paper.score import Scored, Told, change_error, is_near, score
from traces.claims import Result
from traces.results.folder import ModelInfo, RunInfo
from traces.results.metrics import Figures, Spread, Summary

NO_SPREAD = Spread(n=0, mean_ns=None, p50_ns=None, p90_ns=None, p99_ns=None, p999_ns=None)


def result(system: str, tokens_per_s: float, *, rate: float = 1.0, mix: str = "c1", seed: int = 0) -> Result:
    figures = Figures(
        n_finished=1, n_dropped=0, n_unfinished=0, ttft=NO_SPREAD, gap=NO_SPREAD, mean_gap=NO_SPREAD,
        max_gap=NO_SPREAD, gap_share={}, tail_share={}, output_tokens_per_s=tokens_per_s,
        total_tokens_per_s=2 * tokens_per_s, n_preemptions=0, n_recomputed_tokens=0, n_hit_tokens=0,
        peak_lent_bytes=None, n_lends=None, n_reverts=None, n_flips=None, busy_ns=None, stall_ns=None,
    )  # fmt: skip
    models = (ModelInfo(name="m", block_bytes=1),)
    info = RunInfo(system=system, mix=mix, lengths="sharegpt", rate_per_s=rate, seed=seed, models=models)
    return Result(info=info, summary=Summary(state="complete", total=figures, by_model=()))


def claim(name: str = "M1", **given: Any) -> dict[str, Any]:
    base = {"text": "t", "source": "s", "check": "e2e", "experiments": ["x"]}
    return {name: {**base, **given}}


def scored(claims: dict[str, Any], told: Told | None) -> list[Scored]:
    entries = [entry_from(name, "mirage", given) for name, given in claims.items()]
    return score(entries, {} if told is None else {"x": told})


def change(kind: str, percent: object, **ours: Any) -> dict[str, Any]:
    reading = {"change": ["output_tokens_per_s", "total_tokens_per_s"], "of": "new", "against": "old", **ours}
    return claim(paper={kind: percent}, ours=reading)


TWO_RATES = Told(
    results=[result("old", 100), result("new", 120), result("old", 100, rate=2), result("new", 200, rate=2)],
    numbers={"a": 1.0, "b": 2.0},
)


def test_a_change_is_the_mean_over_the_points_that_both_systems_ran() -> None:
    (one,) = scored(change("increase", 60), TWO_RATES)
    assert one.ours is not None
    assert one.ours.values == pytest.approx((0.6,))
    assert (one.ours.n_points, one.error, one.is_right) == (2, pytest.approx(0), True)
    assert (one.ours.low, one.ours.high) == pytest.approx((0.2, 1.0))


def test_what_remains_is_compared() -> None:
    # Golden: reductions of 90 and 95 % leave 10 and 5 %: a factor of two.
    assert change_error(-0.90, -0.95) == pytest.approx(log(2))
    assert change_error(0.5, 1.0) == pytest.approx(log(2 / 1.5))


def test_changes_below_ten_percent_are_compared_by_points() -> None:
    assert change_error(0.02, 0.066) == pytest.approx(0.046)


@given(st.floats(-0.99, 5), st.floats(-0.99, 5))
def test_an_error_is_never_negative_and_none_only_for_the_same(ours: float, paper: float) -> None:
    error = change_error(ours, paper)
    assert error >= 0
    assert isclose(change_error(paper, paper), 0)


def test_the_largest_change_in_the_direction_of_the_claim() -> None:
    (most,) = scored(change("increase", 100, over="max"), TWO_RATES)
    assert most.ours is not None
    assert most.ours.values == pytest.approx((1.0,))
    (least,) = scored(change("reduction", 10, over="max"), TWO_RATES)
    assert least.ours is not None
    assert least.ours.values == pytest.approx((0.2,))
    assert least.verdict == "wrong"


def test_where_keeps_the_points_with_these_facts() -> None:
    (one,) = scored(change("increase", 100, where={"rate": 2}), TWO_RATES)
    assert one.ours is not None
    assert one.ours.values == pytest.approx((1.0,))


def test_no_change_is_right_within_five_points() -> None:
    told = Told(results=[result("old", 100), result("new", 104)], numbers={})
    assert scored(change("increase", 0), told)[0].verdict == "right"
    told = Told(results=[result("old", 100), result("new", 106)], numbers={})
    assert scored(change("increase", 0), told)[0].verdict == "wrong"


def test_an_ordering_holds_only_as_a_whole() -> None:
    (one,) = scored(claim(paper="ordering", ours={"holds": "a < b and a < 1.5 < b"}), TWO_RATES)
    assert (one.verdict, one.error) == ("right", None)
    (one,) = scored(claim(paper="ordering", ours={"holds": "a < b and b < a"}), TWO_RATES)
    assert one.verdict == "wrong"


def test_a_value_is_compared_by_its_ratio() -> None:
    (one,) = scored(claim(paper={"factor": 1.75}, ours={"number": "b"}), TWO_RATES)
    assert one.error == pytest.approx(log(2 / 1.75))


def test_a_range_is_spanned_by_the_others_and_a_duplicate_counts_once() -> None:
    claims = {
        **change("increase", 20, where={"rate": 1.0}),
        "M2": change("increase", 100, where={"rate": 2})["M1"],
        **claim("M3", paper={"increase": [20, 100]}, experiments=[], ours={"range_of": ["M1", "M2"]}),
        **claim("M4", paper={"increase": 100}, experiments=[], ours={"same_as": "M2"}),
    }  # fmt: skip
    *_, spanned, again = scored(claims, TWO_RATES)
    assert (spanned.error, spanned.verdict) == (pytest.approx(0), "right")
    assert (again.verdict, again.error) == ("as M2", pytest.approx(0))


def test_a_claim_without_an_answer_or_a_run_is_unscored() -> None:
    assert scored(claim(paper={"increase": 20}), TWO_RATES)[0].verdict == "unscored"
    assert scored(change("increase", 20), None)[0].verdict == "unscored"
    spanned = claim(paper={"increase": [1, 2]}, experiments=[], ours={"range_of": ["M9"]})
    assert not scored(spanned, TWO_RATES)[0].is_settled


def test_a_wrong_direction_is_settled_only_by_a_refutation() -> None:
    wrong = change("reduction", 20)
    assert not scored(wrong, TWO_RATES)[0].is_settled
    wrong["M1"]["refuted"] = {"because": "b", "evidence": "docs/claims/x.csv"}
    (one,) = scored(wrong, TWO_RATES)
    assert (one.verdict, one.is_settled) == ("refuted", True)


def test_an_open_direction_is_not_settled_and_a_right_one_is_not_open() -> None:
    evidence = {"because": "b", "evidence": "docs/claims/x.csv"}
    wrong, right = change("reduction", 20), change("increase", 60)
    wrong["M1"]["open"] = right["M1"]["open"] = evidence
    assert [(one.verdict, one.is_settled) for one in scored(wrong, TWO_RATES)] == [("open", False)]
    assert [(one.verdict, one.is_settled) for one in scored(right, TWO_RATES)] == [("right", True)]


def test_near_is_a_quarter_or_five_points_below_ten_percent() -> None:
    assert is_near(-0.5, -0.58)
    assert not is_near(-0.4, -0.58)
    assert is_near(0.03, 0.079)
    assert not is_near(0.06, 0.0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"paper": {"increase": 1}, "ours": {}}, "ours gives nothing; give one of"),
        (
            {"paper": {"increase": 1}, "ours": {"number": "a", "holds": "a < b"}},
            "gives number, holds; give one",
        ),
        ({"paper": {"increase": 1}, "ours": {"change": ["speed"], "of": "a", "against": "b"}}, "speed is unknown"),
        ({"paper": {"increase": 1}, "ours": {"change": ["ttft_p99"]}}, "needs of: SYSTEM and against: BASELINE"),
        ({"paper": {"rise": 1}}, "paper: rise=1 is not a kind of claim"),
        ({"paper": {"increase": 1}, "our": {}}, "no key our; there are"),
        ({"paper": "order"}, "paper must be `ordering`, or one of"),
    ],
)
def test_a_faulty_entry_is_named_with_its_mistake(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"^claim M1: ") as refused:
        entry_from("M1", "mirage", claim(**given)["M1"])
    assert told in str(refused.value)


def test_a_number_that_no_figure_gave_is_refused() -> None:
    with pytest.raises(ValueError, match="claim M1: no number c; its experiments gave a, b"):
        scored(claim(paper={"value": 1}, ours={"number": "c"}), TWO_RATES)
