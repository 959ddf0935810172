from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S, Arrival, ModelShape
from tests.traces.burstiness import write_azure
from traces.workload.lengths import LengthSettings
from traces.workload.sources import ArrivalSettings
from traces.workload.streams import Purpose, random_stream
from traces.workload.workload import Workload, WorkloadSettings, workload

SHAREGPT = LengthSettings(kind="table", table="sharegpt_opt_le2048", spearman=0.214)
POISSON = ArrivalSettings(kind="poisson", rate=20.0)
AZURE_LIKE = ArrivalSettings(kind="modulated_poisson", fit="azure_code_2023", rate=20.0)


def shape(name: str = "m0", context: int = 2048) -> ModelShape:
    return ModelShape(
        name=name,
        n_layers=1,
        hidden=1,
        n_heads=1,
        n_kv_heads=1,
        head_dim=1,
        ffn=1,
        vocab=1,
        gated_mlp=False,
        layer_bytes=1,
        total_bytes=1,
        max_context_tokens=context,
    )


def joined(
    arrivals: ArrivalSettings = POISSON,
    lengths: LengthSettings = SHAREGPT,
    chosen: WorkloadSettings | None = None,
    *,
    n_models: int = 2,
    seed: int = 11,
    **by_model: LengthSettings,
) -> Workload:
    return workload(
        arrivals=arrivals,
        lengths=lengths,
        settings=chosen or WorkloadSettings(n_requests=500, overlong="clip"),
        seed=seed,
        shapes=[shape(f"m{model}") for model in range(n_models)],
        lengths_by_model=by_model,
    )


def when_and_who(made: Workload) -> list[tuple[int, int]]:
    return [(arrival.request.arrival_ns, arrival.request.model) for arrival in made.arrivals()]


def tokens_of(made: Workload, model: int) -> list[tuple[int, int]]:
    stream = [arrival for arrival in made.arrivals() if arrival.request.model == model]
    return [(arrival.request.n_prompt_tokens, arrival.n_output_tokens) for arrival in stream]


@settings(max_examples=60)
@given(
    arrivals=st.sampled_from([POISSON, AZURE_LIKE, replace(AZURE_LIKE, rate=1.0, scaling="thin")]),
    division=st.sampled_from(["weights", "round_robin", "per_model"]),
    weights=st.none() | st.lists(st.floats(0.1, 10), min_size=3, max_size=3),
    overlong=st.sampled_from(["drop", "clip"]),
    declared=st.sampled_from(["exact", "fixed", "context"]),
    contexts=st.lists(st.integers(2, 3000), min_size=3, max_size=3),
    n_requests=st.integers(1, 150),
    seed=st.integers(0, 2**40),
)
def test_whatever_the_settings_a_stream_is_ordered_counted_and_the_same_each_time(
    arrivals: ArrivalSettings,
    division: str,
    weights: list[float] | None,
    overlong: str,
    declared: str,
    contexts: list[int],
    n_requests: int,
    seed: int,
) -> None:
    chosen = WorkloadSettings(
        division=division,
        weights=None if division == "round_robin" else weights,
        overlong=overlong,
        declared=declared,
        declared_tokens=64 if declared == "fixed" else None,
        duration_s=60.0,
        n_requests=n_requests,
    )
    shapes = [shape(f"m{model}", context) for model, context in enumerate(contexts)]
    made = workload(arrivals=arrivals, lengths=SHAREGPT, settings=chosen, seed=seed, shapes=shapes)
    stream = list(made.arrivals())
    requests = [arrival.request for arrival in stream]
    assert [request.request_id for request in requests] == list(range(len(stream)))
    assert all(one.arrival_ns <= two.arrival_ns for one, two in pairwise(requests))
    assert all(0 <= request.arrival_ns < 60 * NS_PER_S for request in requests)
    assert all(r.n_prompt_tokens + r.max_output_tokens <= contexts[r.model] for r in requests)
    assert len(stream) <= n_requests

    emitted = Counter(request.model for request in requests)
    for model, counts in enumerate(made.counts.models):
        assert counts.n_offered == counts.n_emitted + counts.n_dropped
        assert counts.n_emitted == emitted[model]
        assert counts.n_dropped == 0 or overlong == "drop"
    assert made.counts.last_arrival_ns == (requests[-1].arrival_ns if requests else 0)
    counted = made.counts
    assert list(pickle.loads(pickle.dumps(made)).arrivals()) == stream == list(made.arrivals())
    assert made.counts == counted


@pytest.mark.parametrize("division", ["weights", "round_robin", "per_model"])
@pytest.mark.parametrize("arrivals", [POISSON, replace(AZURE_LIKE, rate=1.0, scaling="thin")])
def test_other_lengths_move_no_arrival(arrivals: ArrivalSettings, division: str) -> None:
    chosen = WorkloadSettings(division=division, n_requests=300, overlong="clip")
    short = LengthSettings(kind="constant", n_prompt_tokens=1, n_output_tokens=1)
    assert when_and_who(joined(arrivals, SHAREGPT, chosen)) == when_and_who(joined(arrivals, short, chosen))


def test_other_weights_move_no_arrival_and_no_length() -> None:
    even = joined()
    uneven = joined(chosen=WorkloadSettings(weights=[1, 5], n_requests=500, overlong="clip"))
    assert [time for time, _ in when_and_who(even)] == [time for time, _ in when_and_who(uneven)]
    n = min(len(tokens_of(even, 0)), len(tokens_of(uneven, 0)))
    assert tokens_of(even, 0)[:n] == tokens_of(uneven, 0)[:n]


def test_other_lengths_of_one_model_leave_those_of_the_others() -> None:
    mixed = joined(m1=LengthSettings(kind="constant", n_prompt_tokens=7, n_output_tokens=8))
    assert set(tokens_of(mixed, 1)) == {(7, 8)}
    assert tokens_of(mixed, 0) == tokens_of(joined(), 0)
    assert tokens_of(joined(), 0)[:20] != tokens_of(joined(), 1)[:20]


def test_another_seed_gives_another_stream() -> None:
    assert list(joined(seed=1).arrivals()) != list(joined(seed=2).arrivals())


def test_round_robin_takes_turns() -> None:
    made = joined(chosen=WorkloadSettings(division="round_robin", n_requests=7, overlong="clip"), n_models=3)
    assert [model for _, model in when_and_who(made)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("division", ["weights", "per_model"])
def test_each_model_gets_its_share_of_the_rate(division: str) -> None:
    chosen = WorkloadSettings(division=division, weights=[3, 0, 1], duration_s=400.0, overlong="clip")
    made = joined(chosen=chosen, n_models=3)
    counted = Counter(model for _, model in when_and_who(made))
    assert counted[1] == 0
    for model, expected in ((0, 20 * 400 * 0.75), (2, 20 * 400 * 0.25)):
        assert counted[model] == pytest.approx(expected, abs=5 * expected**0.5)  # Poisson counts


def test_models_of_their_own_processes_do_not_arrive_together() -> None:
    made = joined(AZURE_LIKE, chosen=WorkloadSettings(division="per_model", duration_s=60.0))
    times: list[set[int]] = [set(), set()]
    for time_ns, model in when_and_who(made):
        times[model].add(time_ns)
    assert times[0].isdisjoint(times[1])


def test_requests_at_the_same_time_are_in_the_order_of_the_models(tmp_path: Path) -> None:
    # A row a second for 4 s; half the rate each makes it one every 2 s. Model 1 begins half-way round.
    path = write_azure(tmp_path / "t", [(second * NS_PER_S, second + 1, 1) for second in range(5)])
    made = joined(
        ArrivalSettings(kind="file", path=str(path), window_s=4.0),
        LengthSettings(kind="file"),
        WorkloadSettings(division="per_model"),
    )
    stream = [arrival.request for arrival in made.arrivals()]
    seen = [(r.arrival_ns // NS_PER_S, r.model, r.n_prompt_tokens) for r in stream]
    assert seen == [(0, 0, 1), (0, 1, 3), (2, 0, 2), (2, 1, 4), (4, 0, 3), (4, 1, 1), (6, 0, 4), (6, 1, 2)]


def test_a_trace_is_replayed_row_by_row_without_its_failed_requests(tmp_path: Path) -> None:
    rows = [(0, 5, 3), (NS_PER_S, 6, 0), (2 * NS_PER_S, 0, 4), (3 * NS_PER_S, 7, 2), (4 * NS_PER_S, 4000, 2)]
    path = write_azure(tmp_path / "t", rows)
    made = joined(
        ArrivalSettings(kind="file", path=str(path)), LengthSettings(kind="file"), WorkloadSettings(), n_models=1
    )
    stream = list(made.arrivals())
    assert [(a.request.arrival_ns, a.request.n_prompt_tokens, a.n_output_tokens) for a in stream] == [
        (0, 5, 3),
        (3 * NS_PER_S, 7, 2),
    ]
    counts = made.counts
    assert (counts.n_failed_rows, counts.models[0].n_offered, counts.models[0].n_dropped) == (2, 3, 1)
    assert len(rows) == counts.n_failed_rows + counts.models[0].n_offered
    assert counts.description == "2 requests (m0 2); left out: 2 failed rows, 1 too long; clipped: 0; cut: 0"


def test_a_stream_ends_before_the_first_request_at_its_duration(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(second * NS_PER_S, 5, 3) for second in range(5)])
    made = joined(
        ArrivalSettings(kind="file", path=str(path)), chosen=WorkloadSettings(duration_s=2.0, overlong="clip")
    )
    assert [time // NS_PER_S for time, _ in when_and_who(made)] == [0, 1]


def test_every_purpose_and_every_model_draws_from_its_own_stream() -> None:
    streams = [(purpose, *index) for purpose in get_args(Purpose) for index in ((), (0,), (1,))]
    assert len({random_stream(0, *stream).random() for stream in streams}) == len(streams)


def test_whose_request_it_is_does_not_depend_on_the_gap_before_it() -> None:
    # Two purposes on one stream would agree only in their first draws, hence many seeds and few requests.
    chosen = WorkloadSettings(n_requests=20, overlong="clip")
    after_long = [0, 0]
    for seed in range(300):
        stream = when_and_who(
            joined(
                lengths=LengthSettings(kind="constant", n_prompt_tokens=1, n_output_tokens=1), chosen=chosen, seed=seed
            )
        )
        for (before, _), (now, model) in pairwise(stream):
            after_long[model] += now - before > NS_PER_S / 20
    n = sum(after_long)
    assert after_long[0] == pytest.approx(n / 2, abs=5 * (n / 4) ** 0.5)


def test_a_compressed_trace_reaches_its_rate_with_all_its_rows(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(n * NS_PER_S // 2, 5, 3) for n in range(400)])
    made = joined(ArrivalSettings(kind="file", path=str(path), rate=8.0), chosen=WorkloadSettings(overlong="clip"))
    times = [time for time, _ in when_and_who(made)]
    assert len(times) == 400
    assert len(times) / (times[-1] / NS_PER_S) == pytest.approx(8.0, rel=1e-6)
    assert made.counts.rate_per_s == pytest.approx(8.0, rel=1e-6)


def test_a_thinned_trace_reaches_its_rate_with_some_of_its_rows(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(n * NS_PER_S // 2, 5, 3) for n in range(4000)])
    slow = ArrivalSettings(kind="file", path=str(path), rate=0.5, scaling="thin")
    times = [time for time, _ in when_and_who(joined(slow, chosen=WorkloadSettings(overlong="clip")))]
    assert all(time % (NS_PER_S // 2) == 0 for time in times)
    assert len(times) == pytest.approx(1000, abs=5 * (4000 * 0.25 * 0.75) ** 0.5)


def test_a_declared_limit_above_the_truth_moves_no_true_length() -> None:
    def truth(declared: str) -> list[tuple[int, int, int]]:
        made = joined(chosen=WorkloadSettings(declared=declared, n_requests=200))
        stream: list[Arrival] = list(made.arrivals())
        return [(a.request.arrival_ns, a.request.n_prompt_tokens, a.n_output_tokens) for a in stream]

    assert truth("exact") == truth("context")


def test_the_description_says_what_is_replayed_and_how_fast(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t.csv", [(n * NS_PER_S // 2, 5, 3) for n in range(401)])
    slow = ArrivalSettings(kind="file", path=str(path), rate=4.0, window_start_s=50.0, window_s=100.0)
    said = joined(slow, chosen=WorkloadSettings(duration_s=30.0, weights=[3, 1])).description
    assert said.isprintable()
    assert "t.csv from 50.0 s for 100.0 s: 200 requests, 0 failed rows left out" in said
    assert "time divided by 2: 2.000 -> 4.000 requests/s; until 30 s" in said
    assert "m0 0.75 with lengths of sharegpt_opt_le2048" in said


@pytest.mark.parametrize(
    ("given_settings", "what"),
    [
        ({"division": "hash"}, "division=hash is unknown"),
        ({"overlong": "keep"}, "overlong=keep is unknown; choose one of drop, clip, error"),
        ({"declared": "none"}, "declared=none is unknown; choose one of exact, fixed, context"),
        ({"declared": "fixed"}, "declared=fixed needs declared_tokens"),
        ({"declared_tokens": 5}, "declared_tokens has no effect with declared=exact"),
        ({"weights": [1.0, -1.0]}, "weights="),
        ({"weights": [0.0, 0.0]}, "not all 0"),
        ({"weights": []}, "not all 0"),
        ({"weights": [float("inf"), 1.0]}, "must be finite"),
        ({"weights": [1.0], "division": "round_robin"}, "weights have no effect"),
        ({"duration_s": 0.0}, "duration_s=0.0 s must be a finite number above 0"),
        ({"n_requests": 0}, "n_requests=0 requests must be"),
    ],
)
def test_workload_settings_that_make_no_sense_are_refused(given_settings: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        WorkloadSettings(**given_settings)  # pyright: ignore[reportArgumentType]


def test_settings_that_do_not_go_together_are_refused_before_the_first_request() -> None:
    with pytest.raises(ValueError, match=r"never ends; set duration_s or n_requests"):
        joined(chosen=WorkloadSettings())
    with pytest.raises(ValueError, match=r"lengths.kind=file needs arrivals.kind=file, not poisson"):
        joined(lengths=LengthSettings(kind="file"))
    with pytest.raises(ValueError, match=r"are 3 for 2 models"):
        joined(chosen=WorkloadSettings(n_requests=1, weights=[1, 1, 1]))
    with pytest.raises(ValueError, match=r"lengths_by_model names m7, but the models are m0, m1"):
        joined(m7=SHAREGPT)
    with pytest.raises(ValueError, match=r"no model to send requests to"):
        joined(n_models=0)
    with pytest.raises(ValueError, match=r"choose one of sharegpt_opt_le2048"):
        joined(m0=LengthSettings(kind="table", table="x"))
    with pytest.raises(ValueError, match=r"seed=-1 is negative"):
        joined(seed=-1)
    with pytest.raises(ValueError, match=r"can only lower a rate, not multiply it by 7.79"):
        joined(replace(AZURE_LIKE, scaling="thin"))


def test_a_request_that_is_too_long_is_named_where_that_is_an_error() -> None:
    long = LengthSettings(kind="constant", n_prompt_tokens=2000, n_output_tokens=49)
    made = joined(lengths=long, chosen=WorkloadSettings(n_requests=1, overlong="error"))
    with pytest.raises(ValueError, match=r"model m\d, arrival at .* s: 2000 prompt \+ 49 output tokens exceed"):
        next(made.arrivals())
