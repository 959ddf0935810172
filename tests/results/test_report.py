from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.outcome import paper_claims
from policies.types import GIB
from tests.results.scripted import info
from traces.claims import Claim, Result, findings
from traces.report import by_model, causes, change, claims_beside_ours, comparison, number, report
from traces.results.metrics import Figures, Spread, Summary

MS, S = 10**6, 10**9
NOTHING = Spread(n=0, mean_ns=None, p50_ns=None, p90_ns=None, p99_ns=None, p999_ns=None)

BEFORE = Figures(
    n_finished=100,
    n_dropped=0,
    n_unfinished=0,
    ttft=replace(NOTHING, p50_ns=2 * S, p99_ns=80 * S),
    gap=replace(NOTHING, p50_ns=40 * MS, p99_ns=160 * MS, p999_ns=3000 * MS),
    mean_gap=replace(NOTHING, p50_ns=45 * MS, p99_ns=200 * MS),
    max_gap=replace(NOTHING, p99_ns=25_000 * MS),
    gap_share={"preemption": 0.01, "switch": 0, "prefill": 0.04, "fetch": 0, "decode": 0.95},
    tail_share={},
    output_tokens_per_s=1000.0,
    total_tokens_per_s=4000.0,
    n_preemptions=300,
    n_recomputed_tokens=123_456,
    n_hit_tokens=0,
    peak_lent_bytes=0,
    n_lends=0,
    n_reverts=0,
    n_flips=0,
    busy_ns=1000,
    stall_ns=0,
)
AFTER = replace(
    BEFORE,
    ttft=replace(NOTHING, p50_ns=S, p99_ns=4 * S),
    gap=replace(NOTHING, p50_ns=40 * MS, p99_ns=200 * MS, p999_ns=1500 * MS),
    mean_gap=replace(NOTHING, p50_ns=45 * MS, p99_ns=90 * MS),
    output_tokens_per_s=1400.0,
    n_preemptions=0,
    n_recomputed_tokens=0,
    peak_lent_bytes=7 * GIB,
    n_lends=12,
    n_reverts=11,
    n_flips=1,
    stall_ns=25,
)


def result(system: str, figures: Figures, *, state: str = "complete", **changes: object) -> Result:
    summary = Summary(state="complete" if state == "complete" else "incomplete", total=figures, by_model=(figures,) * 2)
    return Result(info=info(system=system, **changes), summary=summary)


def claim(**changes: object) -> Claim:
    given = {"text": "P99 TTFT", "source": "figure", "mix": "c1", "baseline": "recompute", "system": "mirage"}
    entry: dict[str, Any] = {"kind": "reduction", "value_percent": 96.7, "metrics": ("ttft_p99",), **given, **changes}
    return Claim(id="M1", **entry)


def row(text: str, start: str) -> str:
    """The first line that starts so and the one below it, without their spacing."""
    lines = text.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(start))
    return " ".join(" ".join(lines[at : at + 2]).split())


def test_a_comparison_shows_each_system_and_its_change_against_the_first() -> None:
    text = comparison([result("recompute", BEFORE), result("mirage", AFTER)])
    # TTFT s, all gaps ms, mean gap ms, largest gap ms, tokens/s, preemptions, recomputed, lent GiB, reverts, stalls %.
    assert row(text, "recompute").startswith("recompute 2 80 40 160 3000 45 200 25.0k 1000 300 123k 0 0 0 mirage")
    # 25 of 1000 ns waiting is 2.5 %. Below: 1/2, 4/80, 40/40, 200/160, 1500/3000, 45/45, 90/200, equal, 1400/1000,
    # 0/300, 0/123456; from 0 there is no ratio.
    assert row(text, "mirage") == (
        "mirage 1 4 40 200 1500 45 90 25.0k 1400 0 0 7 11 2.50 -50% -95% 0% +25% -50% 0% -55% 0% +40% -100% -100%"
    )
    assert text.startswith("c1, alpaca, 2 requests/s (second lines: against recompute)")
    assert text.endswith("  mirage: 12 lends, 11 reverts, 1 flips; peak lent GiB: left 7, right 7")


def test_seeds_are_averaged_and_rates_stand_apart() -> None:
    tripled = replace(BEFORE, output_tokens_per_s=3000.0)
    runs = [result("a", BEFORE), result("a", tripled, seed=8), result("a", BEFORE, rate_per_s=None)]
    first, second = comparison(runs).split("\n\n")
    assert first.startswith("c1, alpaca, 2 requests/s, mean of 2 seeds")
    assert row(first, "a ") == "a 2 80 40 160 3000 45 200 25.0k 2000 300 123k 0 0 0"  # (1000 + 3000) / 2
    assert second.startswith("c1, alpaca, the trace's own rate")


def test_requests_without_a_latency_are_pointed_out() -> None:
    left = replace(BEFORE, n_finished=90, n_dropped=3, n_unfinished=7)
    text = comparison([result("recompute", left, state="incomplete")])
    assert text.endswith("recompute: incomplete, 90 requests finished, 3 dropped, 7 unfinished")


def test_lines_fit_a_terminal_whatever_the_names_and_numbers() -> None:
    huge = replace(AFTER, ttft=replace(NOTHING, p50_ns=987_654 * S, p99_ns=987_654 * S), n_preemptions=98_765_432)
    runs = [result("a system with a very long name", huge), result("another system with a long name", huge)]
    assert max(map(len, report(runs).splitlines())) <= 120


def test_models_and_causes_have_tables_of_their_own() -> None:
    runs = [result("recompute", BEFORE)]
    assert row(by_model(runs), " left").startswith("left 2 80 40 160")
    assert row(causes(runs), "recompute") == "recompute all 1 0 4 0 95 above P99 - - - - -"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "-"),
        (0, "0"),
        (0.01234, "0.012"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234.5, "1234"),
        (12_345, "12.3k"),
        (1_234_567, "1.23M"),
    ],
)
def test_numbers_have_about_three_digits(value: float | None, written: str) -> None:
    assert number(value) == written


@given(st.floats(0, 1e12))
def test_a_written_number_is_the_number_within_its_digits(value: float) -> None:
    factor = {"k": 1e3, "M": 1e6}
    written = number(value)
    read = float(written.rstrip("kM")) * factor.get(written[-1], 1)
    assert read == pytest.approx(value, rel=0.006, abs=0.0006)


def test_a_change_is_in_percent_and_a_factor_from_ten_on() -> None:
    assert [change(10, after) for after in (5, 10.01, 15, 100, 1234)] == ["-50%", "0%", "+50%", "x10", "x123"]
    assert [change(0, 5), change(None, 5), change(5, None)] == ["", "", ""]


def test_a_claim_is_compared_by_the_mean_over_the_points_that_both_systems_ran() -> None:
    slow = replace(AFTER, ttft=replace(NOTHING, p99_ns=40 * S))
    results = [
        result("recompute", BEFORE),
        result("mirage", AFTER),  # 4 / 80 - 1 = -95 %
        result("recompute", BEFORE, lengths="sharegpt"),
        result("mirage", slow, lengths="sharegpt"),  # 40 / 80 - 1 = -50 %
        result("recompute", BEFORE, rate_per_s=9.0),  # no partner
        result("recompute", BEFORE, mix="c2"),
        result("mirage", AFTER, mix="c2"),  # another mix
    ]
    (found,) = findings(claim(), results)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.725, -0.95, -0.5))
    assert found.n_points == 2


def test_claims_are_printed_beside_ours_with_every_reading_and_its_definition() -> None:
    tbt = claim(text="P99 TBT", value_percent=54.4, metrics=["mean_gap_p99", "gap_p99"])
    text = claims_beside_ours([tbt, claim(mix="c2")], [result("recompute", BEFORE), result("mirage", AFTER)])
    # 90 / 200 - 1 = -55 %; 200 / 160 - 1 = +25 %.
    assert [" ".join(line.split()) for line in text.splitlines()[3:]] == [
        "M1 P99 TBT -54.4% -55.0% -55.0% -55.0% 1 P99 over requests of the mean gap",
        "+25.0% +25.0% +25.0% 1 P99 over all gaps",
    ]


def test_without_runs_of_their_systems_there_is_no_table_of_claims() -> None:
    assert claims_beside_ours([claim()], [result("recompute", BEFORE)]) == ""


def test_the_claims_of_the_paper_are_told_of_the_mixes_that_they_are_about() -> None:
    claims = paper_claims([result("recompute", BEFORE, mix=mix) for mix in ("c1", "c2")])
    # Source: MIRAGE section 7.2, figure 8.
    assert {each.id: round(each.change * 100, 1) for each in claims} == {
        "M011": -54.4,
        "M012": -96.7,
        "M013": 39.9,
        "M014": -44.8,
        "M015": -74.8,
        "M016": 45.3,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": ["p99"]}, r"metrics \['p99'\] are unknown; take from ttft_p50"),
        ({"kind": "rise"}, "kind 'rise' must be reduction or increase"),
    ],
)
def test_a_claim_that_cannot_be_compared_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        claim(**changes)


def test_a_sweep_is_one_table_in_which_the_values_name_systems_and_workloads() -> None:
    quanta = [{"tenancy.quantum_s": quantum_s} for quantum_s in (0.1, 0.2)]
    capped = {"policy.mirage.max_remapped_fraction": 0.3}
    results = [
        each
        for quantum in quanta
        for each in (result("recompute", BEFORE, grid=quantum), result("mirage", AFTER, grid={**quantum, **capped}))
    ]
    text = report(results)
    assert text.count("TTFT  TTFT") == 1
    for quantum_s in (0.1, 0.2):
        title = f"c1, alpaca quantum_s={quantum_s}, 2 requests/s (second lines: against recompute):"
        assert row(text, title).startswith(f"{title} recompute 2 80")
    assert text.count("\nmirage max_remapped_fraction=0.3\n") == 2
    assert "causes" not in text


def test_in_a_sweep_the_runs_that_lack_requests_are_told() -> None:
    lacking = result("mirage", replace(AFTER, n_dropped=3), grid={"tenancy.quantum_s": 0.1})
    text = report([result("recompute", BEFORE, grid={"tenancy.quantum_s": 0.1}), lacking])
    assert "c1, alpaca quantum_s=0.1, 2 requests/s: mirage: complete, 100 requests finished, 3 dropped" in text
    assert "lends" not in text


def test_a_system_under_other_settings_is_not_the_one_of_the_claim() -> None:
    varied = result("mirage", AFTER, grid={"policy.mirage.max_remapped_fraction": 0.3})
    assert not findings(claim(), [result("recompute", BEFORE), varied])
