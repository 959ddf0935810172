from __future__ import annotations

from itertools import islice, repeat, takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S
from tests.traces.burstiness import cv, idc, write_azure
from traces.formats import read_trace
from traces.workload.arrivals import ModulatedPoisson, busiest_window, compress, modulated_poisson, poisson, thin
from traces.workload.replay import measure
from traces.workload.sources import ArrivalSettings, Scaling, load_fit, source_of

HOUR_S = 3436  # the length of the Azure code trace

sorted_times = st.lists(st.integers(0, 10_000), min_size=1, max_size=60).map(sorted)


def azure_like_hour(seed: int) -> list[int]:
    """Arrivals of the fitted process over the length of the trace it was fitted to."""
    times = modulated_poisson(load_fit("azure_code_2023"), np.random.default_rng(seed))
    return list(takewhile(lambda time_ns: time_ns < HOUR_S * NS_PER_S, times))


def compressed(times_ns: list[int], factor: float) -> list[int]:
    return [time_ns for time_ns, _ in compress(zip(times_ns, repeat(None), strict=False), factor)]


@given(st.floats(1e-6, 1e6), st.integers(0, 2**64))
def test_poisson_arrivals_are_integers_in_order_and_repeat_with_the_seed(rate_per_s: float, seed: int) -> None:
    first, again = (list(islice(poisson(rate_per_s, np.random.default_rng(seed)), 2000)) for _ in range(2))
    assert first == again == sorted(first)
    assert first[0] >= 0
    assert {type(time_ns) for time_ns in first} == {int}


@pytest.mark.parametrize("rate_per_s", [0.01, 3.0, 5000.0])
def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential(rate_per_s: float) -> None:
    n = 20_000
    times_ns = list(islice(poisson(rate_per_s, np.random.default_rng(7)), n))
    # n exponential gaps: the relative standard error of the mean and of the CV are both 1/sqrt(n).
    assert n / times_ns[-1] * NS_PER_S == pytest.approx(rate_per_s, rel=5 / n**0.5)
    assert cv(times_ns) == pytest.approx(1.0, abs=5 / n**0.5)


@given(
    batches_per_s=st.lists(st.floats(0.1, 30), min_size=2, max_size=2),
    stay=st.floats(0.05, 0.95),
    mean_batch=st.floats(1, 5),
    intra_gap_s=st.floats(0, 3),
    seed=st.integers(0, 1000),
)
def test_modulated_arrivals_are_in_order_and_repeat_with_the_seed(
    batches_per_s: list[float], stay: float, mean_batch: float, intra_gap_s: float, seed: int
) -> None:
    process = ModulatedPoisson(
        step_s=1.0,
        batches_per_s=batches_per_s,
        transition=[[stay, 1 - stay], [1 - stay, stay]],
        mean_batch=mean_batch,
        intra_gap_s=intra_gap_s,
    )
    first, again = (list(islice(modulated_poisson(process, np.random.default_rng(seed)), 500)) for _ in range(2))
    assert first == again == sorted(first)
    assert process.stationary == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("intra_gap_s", [0.001, 5.0])
def test_a_gap_within_batches_moves_no_request_of_a_batch_of_its_own(intra_gap_s: float) -> None:
    def first_times(gap_s: float) -> list[int]:
        process = ModulatedPoisson(
            step_s=1.0, batches_per_s=[50.0], transition=[[1.0]], mean_batch=1.0, intra_gap_s=gap_s
        )
        return list(islice(modulated_poisson(process, np.random.default_rng(4)), 500))

    assert first_times(intra_gap_s) == first_times(0.0)


def test_the_requests_of_a_batch_follow_each_other_at_the_gap() -> None:
    # One batch in 10^4 s, with 4 requests on average: almost every gap below 100 s is one within a batch.
    process = ModulatedPoisson(step_s=1.0, batches_per_s=[1e-4], transition=[[1.0]], mean_batch=4.0, intra_gap_s=2.0)
    times_ns = list(islice(modulated_poisson(process, np.random.default_rng(8)), 400))
    within = [gap for gap in np.diff(times_ns) if gap < 100 * NS_PER_S]
    # 3 of 4 requests follow another of their batch; an exponential gap has a standard error of mean / sqrt(n).
    assert len(within) == pytest.approx(300, abs=5 * (400 * 0.75 * 0.25 * 4) ** 0.5)
    assert np.mean(within) / NS_PER_S == pytest.approx(2.0, abs=5 * 2.0 / len(within) ** 0.5)


def test_the_fitted_process_has_the_rate_of_the_trace_it_was_fitted_to() -> None:
    # 8819 requests in 3435.948 s; the stationary shares are those of the fit.
    process = load_fit("azure_code_2023")
    assert process.mean_rate_per_s == pytest.approx(8819 / 3435.948, rel=1e-4)
    assert process.stationary == pytest.approx([0.42897, 0.271, 0.04248, 0.19597, 0.05352, 0.00806], abs=1e-4)


def test_hours_of_the_fitted_process_look_like_hours_of_the_fit() -> None:
    # Golden: P10 and P90 over 200 to 300 hours of an independent implementation. Of n = 40 hours 80 % should
    # lie between; Bin(40, 0.8) is below 22 with probability 9e-5.
    hours = [azure_like_hour(seed) for seed in range(40)]
    counts = [np.bincount(np.array(hour) // NS_PER_S, minlength=HOUR_S) for hour in hours]
    seen = {
        (2.07, 3.16): [len(hour) / HOUR_S for hour in hours],
        (11.4, 15.7): [cv(hour) for hour in hours],
        (0.68, 0.78): [float((count == 0).mean()) for count in counts],
        (10.1, 12.4): [idc(hour, NS_PER_S) for hour in hours],
        (56, 76): [idc(hour, 10 * NS_PER_S) for hour in hours],
        (121, 203): [idc(hour, 60 * NS_PER_S) for hour in hours],
    }
    for (low, high), values in seen.items():
        assert sum(low <= value <= high for value in values) >= 22, (low, high, values)


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.75])
def test_compressing_time_moves_dispersion_along_and_keeps_the_variation_of_gaps(factor: float) -> None:
    times_ns = azure_like_hour(1)
    faster_ns = compressed(times_ns, factor)
    assert cv(faster_ns) == pytest.approx(cv(times_ns), rel=1e-6)
    for window_ns in (NS_PER_S, 8 * NS_PER_S):
        assert idc(faster_ns, window_ns) == pytest.approx(idc(times_ns, round(factor * window_ns)), rel=1e-9)


@given(sorted_times, st.floats(1e-3, 1e3))
def test_compressing_keeps_every_arrival_in_order_within_half_a_nanosecond(times_ns: list[int], factor: float) -> None:
    faster_ns = compressed(times_ns, factor)
    assert faster_ns == sorted(faster_ns)
    for before, after in zip(times_ns, faster_ns, strict=True):
        assert abs(after - before / factor) <= 0.5


@pytest.mark.parametrize("keep", [0.25, 0.5])
def test_thinning_moves_dispersion_towards_poisson(keep: float) -> None:
    times_ns = azure_like_hour(2)
    runs = [list(thin(times_ns, keep, np.random.default_rng(seed))) for seed in range(60)]
    for window_ns in (NS_PER_S, 10 * NS_PER_S):
        thinned = [idc(run, window_ns) for run in runs]
        expected = 1 + keep * (idc(times_ns, window_ns) - 1)
        # The tolerance is 5 standard errors of the mean over the runs, and 0.5 % for the last, incomplete window.
        assert np.mean(thinned) == pytest.approx(expected, abs=5 * np.std(thinned) / 60**0.5 + 0.005 * expected)
    n_kept = sum(len(run) for run in runs)
    n_drawn = 60 * len(times_ns)
    assert n_kept / n_drawn == pytest.approx(keep, abs=5 * (keep * (1 - keep) / n_drawn) ** 0.5)


@given(sorted_times, st.floats(0.01, 1.0), st.integers(0, 1000))
def test_thinning_keeps_some_of_the_arrivals_in_their_order(times_ns: list[int], keep: float, seed: int) -> None:
    kept = list(thin(enumerate(times_ns), keep, np.random.default_rng(seed)))
    assert kept == [pair for pair in enumerate(times_ns) if pair in kept]
    assert list(thin(times_ns, 1.0, np.random.default_rng(seed))) == times_ns


@given(sorted_times, st.integers(1, 10_000))
def test_the_busiest_window_holds_as_many_arrivals_as_any(times_ns: list[int], duration_ns: int) -> None:
    if duration_ns > times_ns[-1] + 1 - times_ns[0]:
        with pytest.raises(ValueError, match="shorten it"):
            busiest_window(times_ns, duration_ns)
        return
    start_ns, n_arrivals = busiest_window(times_ns, duration_ns)
    in_window = [sum(start <= time < start + duration_ns for time in times_ns) for start in (*times_ns, start_ns)]
    assert in_window[-1] == n_arrivals == max(in_window)
    assert times_ns[0] <= start_ns <= times_ns[-1] + 1 - duration_ns


def test_the_code_trace_at_ten_requests_a_second_bursts_as_known(published: Path) -> None:
    # Golden: up to 232 arrivals in 1 s and 131 in 0.5 s, counted on the same file by other code.
    times_ns = [row.arrival_ns for row in read_trace(published / "azure_code_2023.csv.gz")]
    faster_ns = compressed(times_ns, 10 / (len(times_ns) / times_ns[-1] * NS_PER_S))
    assert busiest_window(faster_ns, NS_PER_S)[1] == 232
    assert busiest_window(faster_ns, NS_PER_S // 2)[1] == 131


@settings(max_examples=40)
@given(
    seconds=st.lists(st.integers(0, 30), min_size=4, max_size=20).map(sorted),
    start_s=st.integers(0, 8),
    phase=st.sampled_from([0.0, 0.25, 0.5]),
    failed=st.sets(st.integers(0, 19)),
)
def test_a_replay_gives_the_rows_of_its_window_once_whatever_its_phase(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], start_s: int, phase: float, failed: set[int]
) -> None:
    times_s = [0, *seconds, 31]
    rows = [(time_s * NS_PER_S, n + 1, 0 if n in failed else 1) for n, time_s in enumerate(times_s)]
    path = write_azure(tmp_path_factory.mktemp("trace") / "t.csv", rows)
    wanted = [n + 1 for n, time_s in enumerate(times_s) if start_s <= time_s < start_s + 12 and n not in failed]
    if not wanted:
        with pytest.raises(ValueError, match="have no rate"):
            measure(path, start_s=start_s, duration_s=12)
        return
    replay = measure(path, start_s=start_s, duration_s=12)
    replayed = list(replay.arrivals(np.random.default_rng(0), phase))
    times_ns = [time_ns for time_ns, _ in replayed]
    assert sorted(row.n_prompt_tokens for _, row in replayed) == wanted
    assert times_ns == sorted(times_ns)
    turned = {(row.arrival_ns - round((start_s + 12 * phase) * NS_PER_S)) % (12 * NS_PER_S) for _, row in replayed}
    assert set(times_ns) == turned
    assert replay.mean_rate_per_s == pytest.approx(len(wanted) / 12)
    assert replay.n_rows == len(wanted) + replay.n_failed


def test_a_replay_finds_the_busiest_window_of_the_trace(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(time_s * NS_PER_S, 1, 1) for time_s in (0, 10, 20, 21, 22, 30)])
    replay = measure(path, duration_s=3, busiest=True)
    assert (replay.start_ns, replay.n_rows) == (20 * NS_PER_S, 3)
    assert replay.mean_rate_per_s == 1.0


@pytest.mark.parametrize(
    ("start_s", "duration_s", "busiest", "what"),
    [
        (0, 31.0, False, "passes the last row, which is 30.0 s after the first"),
        (31, None, False, "passes the last row"),
        (30, None, False, "have no rate"),
        (11, 5.0, False, "0 requests in 5.0 s from 11.0 s have no rate"),
        (0, 60.0, True, "no window of 60.0 s"),
        (0, None, True, "set window_s"),
    ],
)
def test_a_window_that_the_trace_does_not_have_is_refused(
    tmp_path: Path, start_s: float, duration_s: float | None, busiest: bool, what: str
) -> None:
    path = write_azure(tmp_path / "t", [(time_s * NS_PER_S, 1, 1) for time_s in (0, 10, 20, 30)])
    with pytest.raises(ValueError, match=what):
        measure(path, start_s=start_s, duration_s=duration_s, busiest=busiest)


@pytest.mark.parametrize(
    ("given_settings", "what"),
    [
        (
            {"kind": "uniform"},
            "arrivals.kind=uniform is unknown; choose one of file, modulated_poisson, block_gamma, gamma, poisson",
        ),
        ({"kind": "file"}, "arrivals.kind=file needs arrivals.path"),
        ({"kind": "poisson"}, "arrivals.kind=poisson needs arrivals.rate"),
        ({"kind": "poisson", "rate": 0.0}, "arrivals.rate=0.0 requests/s must be a finite number above 0"),
        ({"kind": "poisson", "rate": float("nan")}, "arrivals.rate=nan"),
        ({"kind": "poisson", "rate": 1.0, "window_s": 5.0}, "arrivals.window_s=5.0 has no effect"),
        ({"kind": "modulated_poisson", "fit": "x", "path": "y"}, "arrivals.path=y has no effect"),
        ({"kind": "file", "path": "x", "scaling": "stretch"}, "choose one of compress, thin"),
        ({"kind": "file", "path": "x", "window_start_s": -1.0}, "0 or more"),
        ({"kind": "file", "path": "x", "window_s": -1.0}, "above 0"),
        (
            {"kind": "file", "path": "x", "time_unit": "h"},
            "arrivals.time_unit=h is unknown; choose one of s, ms, us, ns",
        ),
        ({"kind": "gamma", "rate": 1.0}, "arrivals.kind=gamma needs arrivals.cv"),
        ({"kind": "gamma", "rate": 1.0, "cv": 0.0}, "arrivals.cv=0.0 is outside"),
        ({"kind": "poisson", "rate": 1.0, "cv": 1.0}, "arrivals.cv=1.0 has no effect"),
        ({"kind": "file", "path": "x", "busiest": True}, "set window_s, and no window_start_s"),
    ],
)
def test_arrival_settings_that_make_no_sense_are_refused(given_settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ArrivalSettings(**given_settings)  # pyright: ignore[reportArgumentType]


def test_a_fit_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="choose one of azure_code_2023"):
        source_of(ArrivalSettings(kind="modulated_poisson", fit="azure_code_2024"))


def test_thinning_cannot_raise_a_rate() -> None:
    with pytest.raises(ValueError, match=r"set arrivals.scaling=compress or a lower arrivals.rate"):
        Scaling(kind="thin", factor=1.5)
    with pytest.raises(ValueError, match="compress can raise a rate"):
        thin([], 1.5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="above 0"):
        compress([], 0.0)


@pytest.mark.parametrize("rate_per_s", [0.0, 1e-7, float("nan"), float("inf")])
def test_a_poisson_rate_that_is_none_is_refused(rate_per_s: float) -> None:
    with pytest.raises(ValueError, match="requests/s is outside"):
        poisson(rate_per_s, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("batches_per_s", "transition", "mean_batch"),
    [
        ([], [], 1.0),
        ([1.0], [[0.9]], 1.0),
        ([1.0], [[float("nan")]], 1.0),
        ([0.0], [[1.0]], 1.0),
        ([1.0, 1.0], [[1.0]], 1.0),
        ([1.0], [[1.0]], 0.5),
    ],
)
def test_a_modulated_process_that_is_none_is_refused(
    batches_per_s: list[float], transition: list[list[float]], mean_batch: float
) -> None:
    with pytest.raises(ValueError, match=r"must|sums"):
        ModulatedPoisson(
            step_s=1.0,
            batches_per_s=batches_per_s,
            transition=transition,
            mean_batch=mean_batch,
            intra_gap_s=0.0,
        )
