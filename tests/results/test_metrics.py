from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.journal import GapCause
from policies.serving.sequence import State
from policies.types import GIB, NS_PER_S
from tests.results.scripted import NO_SCHEDULER, batch, decide, info, report, sequence, use
from traces.results.folder import RunTables, read_run
from traces.results.metrics import Summary, quantiles, read_summary, spread, summarise, write_summary
from traces.results.results import RunWriter

WEIGHTED = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), min_size=1, max_size=20)


@given(WEIGHTED, st.integers(1, 1000))
def test_a_weighted_quantile_is_the_first_value_that_reaches_its_share(
    weighted: list[tuple[int, int]], per_mille: int
) -> None:
    values, weights = np.array(weighted, dtype=np.int64).T
    (found,) = quantiles(values, weights, (per_mille,))
    expanded = np.repeat(values, weights)
    reached = [
        int(value) for value in np.unique(values) if 1000 * np.sum(expanded <= value) >= per_mille * len(expanded)
    ]
    assert found == reached[0]


@given(WEIGHTED, st.sampled_from([500, 900, 990, 999]))
def test_a_weighted_quantile_is_numpys_inverted_cdf_of_the_expanded_values(
    weighted: list[tuple[int, int]], per_mille: int
) -> None:
    values, weights = np.array(weighted, dtype=np.int64).T
    (found,) = quantiles(values, weights, (per_mille,))
    assert found == np.quantile(np.repeat(values, weights), per_mille / 1000, method="inverted_cdf")


def test_the_p99_of_a_hundred_values_is_the_second_largest() -> None:
    described = spread(np.arange(1, 101, dtype=np.int64))
    assert (described.p50_ns, described.p90_ns, described.p99_ns, described.p999_ns) == (50, 90, 99, 100)
    assert (described.n, described.mean_ns) == (100, 50.5)


def test_a_distribution_of_nothing_has_no_quantiles() -> None:
    described = spread(np.array([], dtype=np.int64))
    assert (described.n, described.mean_ns, described.p99_ns) == (0, None, None)


@pytest.fixture
def run(tmp_path: Path) -> RunTables:
    """Two requests that finish, one that is dropped, one that is left; model 0 lends twice."""
    with RunWriter(tmp_path, info()) as writer:
        # Model 0: arrives at 0 s, tokens at 1, 1.4, 1.8, 2.2 and 3 s. Model 1: arrives at 1 s, tokens at 3 and 4 s.
        writer.retired(0, 0, [sequence(0, tokens_s=[1, 1.4, 1.8, 2.2, 3], n_prompt_tokens=10)], NO_SCHEDULER)
        writer.gaps(0, GapCause.DECODE, [400_000_000], 3)
        writer.gaps(0, GapCause.PREFILL, [800_000_000], 1)
        late = sequence(1, arrival_s=1, tokens_s=[3, 4], n_prompt_tokens=20, n_recomputed=7)
        writer.retired(1, 0, [late, sequence(2, arrival_s=2, state=State.DROPPED)], NO_SCHEDULER)
        writer.gaps(1, GapCause.PREEMPTION, [NS_PER_S], 1)
        writer.outlived(1, [sequence(3, arrival_s=3.5, state=State.WAITING)])
        writer.ran(0, batch(), report(0, [60, 100], [10, 15]))
        writer.ran(1, batch(), report(200, [300], [0]))
        writer.hbm(1, [use(0, lent_bytes=3 * GIB), use(1)])
        writer.hbm(2, [use(0), use(1, lent_bytes=2 * GIB)])
        writer.hbm(3, [use(0, lent_bytes=GIB), use(1, lent_bytes=2 * GIB)])
        decide(writer, 1, [], [1, 2])
        decide(writer, 2, [1, 2], [1])
        decide(writer, 2.5, [1], [1, 2])  # home 2 is lent again 0.5 s after its return: a flip
        decide(writer, 3, [1, 2], [1, 2, 3], refused=True)
        decide(writer, 4, [1, 2], [])
        decide(writer, 5.5, [], [1])  # home 1 after 1.5 s: no flip
    return read_run(tmp_path)


def test_latencies_are_of_the_finished_requests_and_the_others_are_counted(run: RunTables) -> None:
    total = summarise(run).total
    assert (total.n_finished, total.n_dropped, total.n_unfinished) == (2, 1, 1)
    # First token minus arrival: 1 s and 3 - 1 = 2 s; one of two reaches half.
    assert (total.ttft.n, total.ttft.p50_ns, total.ttft.p99_ns) == (2, NS_PER_S, 2 * NS_PER_S)
    # Mean gaps: (3 - 1) / 4 = 0.5 s and 1 s; largest: 3 - 2.2 = 0.8 s and 1 s.
    assert (total.mean_gap.p50_ns, total.mean_gap.p99_ns) == (NS_PER_S // 2, NS_PER_S)
    assert (total.max_gap.p50_ns, total.max_gap.p99_ns) == (800_000_000, NS_PER_S)


def test_gaps_are_counted_each_with_its_cause(run: RunTables) -> None:
    total = summarise(run).total
    # 0.4, 0.4, 0.4, 0.8 and 1 s: half of five needs the third, nine tenths the fifth.
    assert (total.gap.n, total.gap.p50_ns, total.gap.p90_ns) == (5, 400_000_000, NS_PER_S)
    assert total.gap.mean_ns == pytest.approx(600_000_000)
    assert total.gap_share == {"preemption": 0.2, "switch": 0, "prefill": 0.2, "fetch": 0, "decode": 0.6}
    assert total.tail_share == {}  # no gap is above the largest


def test_tokens_per_second_are_over_the_makespan_of_the_run_so_that_models_add_up(run: RunTables) -> None:
    summary = summarise(run)
    left, right = summary.by_model
    # From the arrival at 0 s to the last finish at 4 s: 5 + 2 output tokens, 10 + 20 prompt tokens.
    assert summary.total.output_tokens_per_s == pytest.approx(7 / 4)
    assert summary.total.total_tokens_per_s == pytest.approx(37 / 4)
    assert (left.output_tokens_per_s, right.output_tokens_per_s) == (5 / 4, 2 / 4)
    assert (right.n_preemptions, right.n_recomputed_tokens) == (1, 7)


def test_stalls_are_a_share_of_the_steps(run: RunTables) -> None:
    summary = summarise(run)
    # Model 0: 100 ns of steps, 25 of them waiting; model 1: 100 ns without.
    assert (summary.total.busy_ns, summary.total.stall_ns, summary.total.stall_share) == (200, 25, 0.125)
    assert summary.by_model[0].stall_share == 0.25


def test_the_peak_of_all_is_not_the_sum_of_the_peaks(run: RunTables) -> None:
    summary = summarise(run)
    # 3 + 0, then 0 + 2, then 1 + 2 GiB: what changes at one instant changes together.
    assert summary.total.peak_lent_bytes == 3 * GIB
    assert [figures.peak_lent_bytes for figures in summary.by_model] == [3 * GIB, 2 * GIB]


def test_loans_are_counted_when_they_take_effect_and_soon_after_a_return_as_flips(run: RunTables) -> None:
    left, right = summarise(run).by_model
    # Lent: 1, 2, again 2, again 1. Returned: 2, then both.
    assert (left.n_lends, left.n_reverts, left.n_flips) == (4, 3, 1)
    assert (right.n_lends, right.n_reverts, right.n_flips) == (0, 0, 0)


def test_a_home_that_goes_from_one_borrower_to_another_is_no_flip(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        decide(writer, 1, [], [1])
        decide(writer, 2, [1], [1, 2], borrower=0)
    left = summarise(read_run(tmp_path)).by_model[0]
    assert (left.n_lends, left.n_reverts, left.n_flips) == (3, 1, 0)


def test_the_tail_is_what_lies_above_the_p99(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        writer.gaps(0, GapCause.DECODE, [1], 990)
        writer.gaps(0, GapCause.PREFILL, [5], 6)
        writer.gaps(0, GapCause.SWITCH, [9], 4)
    total = summarise(read_run(tmp_path)).total
    # 990 of 1000 gaps reach 99 %, so the P99 is 1 ns and ten gaps are above it.
    assert (total.gap.p99_ns, total.gap.p999_ns) == (1, 9)
    assert (total.tail_share["prefill"], total.tail_share["switch"]) == (0.6, 0.4)


def test_a_run_without_requests_or_optional_tables_has_a_summary(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info(), tables=("requests", "gaps")):
        pass
    total = summarise(read_run(tmp_path)).total
    assert (total.n_finished, total.output_tokens_per_s, total.gap.n) == (0, None, 0)
    assert (total.peak_lent_bytes, total.n_reverts, total.stall_share) == (None, None, None)


def test_a_summary_is_read_as_it_was_written(tmp_path: Path, run: RunTables) -> None:
    written: Summary = write_summary(tmp_path)
    assert written == summarise(run)
    assert read_summary(tmp_path) == written
