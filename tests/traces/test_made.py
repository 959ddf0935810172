from __future__ import annotations

from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest

from policies.types import NS_PER_S
from tests.traces.burstiness import cv, idc, write_azure
from traces.sessions.made import LognormalMixture, load_session_fit, session_fits
from traces.workload.block_gamma import BlockGamma, block_gamma
from traces.workload.dataset import drawn_pairs, load_pairs
from traces.workload.lengths import LengthSettings
from traces.workload.renewal import gamma
from traces.workload.sources import ArrivalSettings, BlockGammaSource, source_of
from traces.writing.make import made


@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_the_spread_that_was_asked_for(spread: float) -> None:
    n = 200_000
    times_ns = list(islice(gamma(4.0, spread, np.random.default_rng(1)), n))
    assert times_ns == sorted(times_ns)
    # Relative standard error of a mean of n gaps: CV / sqrt(n). Of the CV: sqrt((kurtosis - 1) / 4 n + ...) below
    # (3 + 6 CV^2) / sqrt(4 n) for a Gamma distribution.
    assert n / times_ns[-1] * NS_PER_S == pytest.approx(4.0, rel=5 * spread / n**0.5)
    assert cv(times_ns) == pytest.approx(spread, rel=5 * (3 + 6 * spread**2) ** 0.5 / (4 * n) ** 0.5 * 2)


def test_gamma_with_cv_1_is_poisson() -> None:
    times_ns = list(islice(gamma(50.0, 1.0, np.random.default_rng(2)), 100_000))
    assert idc(times_ns, NS_PER_S) == pytest.approx(1.0, abs=5 * (2 / 2000) ** 0.5)


@pytest.mark.parametrize(("rate", "spread"), [(0.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, 1e9)])
def test_gamma_refuses_numbers_out_of_range(rate: float, spread: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        gamma(rate, spread, np.random.default_rng(0))


def conv() -> BlockGamma:
    source = source_of(ArrivalSettings(kind="block_gamma", fit="azure_conv_2023"))
    assert isinstance(source, BlockGammaSource)
    return source.process


def test_the_conversation_fit_has_the_dispersion_of_its_trace() -> None:
    # Golden: the index of dispersion of the Azure 2023 conversation trace, mean over 5 phases.
    trace = {0.1: 1.06, 0.2: 1.1, 0.5: 1.2, 1: 1.37, 2: 1.67, 5: 2.52, 10: 3.87, 20: 6.45, 60: 15.73, 300: 66.26}
    for window_s, expected in trace.items():
        assert conv().dispersion(window_s) == pytest.approx(expected, rel=0.06)


def test_drawn_conversation_arrivals_have_the_rate_and_the_dispersion_of_the_closed_form() -> None:
    runs = [
        list(takewhile(lambda time_ns: time_ns < 3500 * NS_PER_S, block_gamma(conv(), np.random.default_rng(seed))))
        for seed in range(30)
    ]
    assert all(run == sorted(run) for run in runs)
    rates = [len(run) / 3500 for run in runs]
    assert np.mean(rates) == pytest.approx(5.5304, abs=5 * np.std(rates) / 30**0.5)
    for window_s in (1, 10):
        drawn = [idc(run, window_s * NS_PER_S) for run in runs]
        # The slow factor is shared by the windows of one hour, which takes a little of its variance out: 2 %.
        expected = conv().dispersion(window_s)
        assert np.mean(drawn) == pytest.approx(expected, abs=5 * np.std(drawn) / 30**0.5 + 0.02 * expected)


def test_the_kinds_of_fits_are_not_mixed_up() -> None:
    with pytest.raises(ValueError, match="choose one of azure_conv_2023"):
        source_of(ArrivalSettings(kind="block_gamma", fit="azure_code_2023"))


def test_pairs_of_a_file_are_drawn_together_and_failed_rows_are_left_out(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(0, 5, 50), (1000, 6, 60), (2000, 7, 0), (3000, 0, 7)])
    drawn = list(islice(drawn_pairs(load_pairs(path), np.random.default_rng(3)), 4000))
    assert set(drawn) == {(5, 50), (6, 60)}
    assert sum(pair == (5, 50) for pair in drawn) == pytest.approx(2000, abs=5 * 1000**0.5)


def test_of_a_long_file_every_row_is_kept_with_the_same_probability(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(n * 1000, n + 1, 1) for n in range(4000)])
    kept = load_pairs(path, most=400)[:, 0]
    assert len(kept) == len(set(kept.tolist())) == 400
    # The mean of 400 of 1..4000 without replacement: sd 1155 / 20 at most.
    assert kept.mean() == pytest.approx(2000, abs=5 * 58)


def test_a_file_without_served_rows_has_no_lengths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no row has both prompt and output tokens"):
        load_pairs(write_azure(tmp_path / "t", [(0, 5, 0)]))


@pytest.mark.parametrize("name", session_fits())
def test_made_sessions_grow_by_what_was_said(name: str) -> None:
    for session in islice(load_session_fit(name).sessions(np.random.default_rng(5), max_turns=12), 50):
        assert 1 <= len(session.turns) <= 12
        n_context = 0
        for turn in session.turns:
            assert turn.n_prompt_tokens == n_context + turn.n_new_tokens
            n_context = turn.n_prompt_tokens + turn.n_output_tokens


def test_made_agent_sessions_look_like_those_of_the_fit() -> None:
    # Golden: 21.2 turns a session, first context about 7.1 k, observations of mean 441 clipped at 20000, answers 110,
    # think times 1.21 s; a lognormal mixture gets the means within 8 %.
    sessions = list(islice(load_session_fit("sweagent").sessions(np.random.default_rng(6)), 2000))
    turns = [turn for session in sessions for turn in session.turns]
    later = [turn for session in sessions for turn in session.turns[1:]]
    assert len(turns) / len(sessions) == pytest.approx(21.2, rel=0.08)
    assert np.mean([s.turns[0].n_prompt_tokens for s in sessions]) == pytest.approx(7100, rel=0.05)
    assert np.mean([turn.n_output_tokens for turn in turns]) == pytest.approx(109.9, rel=0.08)
    assert np.mean([turn.n_new_tokens for turn in later]) == pytest.approx(441, rel=0.1)
    assert np.mean([turn.think_ns for turn in later]) / NS_PER_S == pytest.approx(1.21, rel=0.05)


def test_a_mixture_is_clipped_and_has_its_share_of_zeros() -> None:
    mixture = LognormalMixture(weights=[1.0], mu=[3.0], sigma=[1.0], least=10, most=30, zero_share=0.25)
    drawn = np.array(mixture.draw(20_000, np.random.default_rng(7)))
    assert set(drawn) <= {0, *range(10, 31)}
    assert (drawn == 0).mean() == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 20_000) ** 0.5)


def test_the_same_seed_makes_the_same_trace() -> None:
    def lines(seed: int) -> list[object]:
        arrivals = ArrivalSettings(kind="block_gamma", fit="azure_conv_2023", rate=2.0)
        lengths = LengthSettings(kind="table", table="azure_conv_2023")
        return list(made(arrivals, lengths=lengths, sessions=None, seed=seed, n=300))

    assert lines(1) == lines(1) != lines(2)


def test_a_made_trace_ends_at_its_duration_or_number() -> None:
    arrivals = ArrivalSettings(kind="poisson", rate=10.0)
    lengths = LengthSettings(kind="table", table="alpaca_full")
    timed = list(made(arrivals, lengths=lengths, sessions=None, seed=0, duration_s=50.0))
    assert max(line.arrival_ns or 0 for line in timed) < 50 * NS_PER_S
    assert len(timed) == pytest.approx(500, abs=5 * 500**0.5)
    assert len(list(made(arrivals, lengths=lengths, sessions=None, seed=0, n=7))) == 7
