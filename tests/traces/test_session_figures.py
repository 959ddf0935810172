"""Figures of sessions, from runs so small that they can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces.sessions.metrics import by_progress, by_turn, figures_of
from traces.sessions.settings import SessionSettings
from traces.sessions.turns import Turns, turns_of

S = 10**9


class Kept:
    """The tables of a run of two sessions with two turns each, as far as figures read them."""

    kept = ("requests",)

    def __init__(self, **columns: list[Any]) -> None:
        self.info = type("Info", (), {"seed": 0})
        self._columns = {name: np.array(values) for name, values in columns.items()}

    def columns(self, table: str, only: tuple[str, ...]) -> dict[str, Any]:
        assert table == "requests"
        return {name: self._columns[name] for name in only}


def settings(**changes: Any) -> SessionSettings:
    sizes: dict[str, Any] = {"n_turns": 2, "first_tokens": 10, "added_tokens": 10, "output_tokens": 5, "think_s": 0.0}
    given: dict[str, Any] = {"kind": "equal", "n_sessions": 2, **sizes, **changes}
    return SessionSettings(**given)


def kept(**changes: list[Any]) -> Any:
    """Session 0 has requests 0 and 1, session 1 has 2 and 3; the last one is not finished."""
    columns: dict[str, list[Any]] = {
        "request_id": [0, 2, 1, 3],
        "arrival_ns": [0, 0, 2 * S, 4 * S],
        "scheduled_ns": [0, 1 * S, 2 * S, 4 * S],
        "first_token_ns": [1 * S, 3 * S, 4 * S, 5 * S],
        "finish_ns": [2 * S, 4 * S, 6 * S, 0],
        "outcome": ["finished", "finished", "finished", "running"],
        "n_prompt_tokens": [10, 10, 25, 25],
        "n_output_tokens": [5, 5, 5, 1],
        "n_preemptions": [0, 1, 1, 0],
        "n_first_hit_tokens": [0, 0, 10, 0],
        "mean_gap_ns": [250_000_000, 250_000_000, 500_000_000, 0],
    }
    return Kept(**{**columns, **changes})


def turns(**changes: Any) -> Turns:
    return turns_of(kept(), settings(**changes))


def test_a_request_is_the_turn_that_its_number_says() -> None:
    of = turns()
    assert of.columns["request_id"].tolist() == [0, 2, 1]  # in the order of their finish
    assert of.number.tolist() == [0, 0, 1]
    assert of.is_last.tolist() == [False, False, True]
    assert of.n_recorded == 4


def test_figures_are_over_all_turns_or_without_the_first() -> None:
    every = figures_of(kept(), turns())
    later = figures_of(kept(), turns(measured="without_first_turn"))
    assert (every["ttft_mean_s"], later["ttft_mean_s"]) == (2.0, 2.0)
    assert (every["ttft_p99_s"], later["n_measured_turns"]) == (3.0, 1)
    assert every["tpot_mean_ms"] == pytest.approx(1000 / 3)
    assert later["tpot_mean_ms"] == 500
    assert (every["hit_percent"], later["hit_percent"]) == (pytest.approx(100 * 10 / 45), 40.0)
    assert every["queue_mean_s"] == pytest.approx(1 / 3)
    assert every["output_tokens_per_s"] == 15 / 6
    assert (every["preemptions"], every["recorded_turns_percent"]) == (2, 75.0)


def test_a_replay_is_measured_once_it_is_warm_until_the_first_session_ends() -> None:
    of = turns(measured="replay", warm_up_turns=1)
    assert of.window_ns() == (2 * S, 6 * S)
    figures = figures_of(kept(), of)
    assert figures["n_measured_turns"] == 2  # with a first token at 3 and 4 s
    assert figures["turns_per_s"] == 2 / 4  # that finished at 2 and 4 s
    assert figures["preemptions_per_1k_turns"] == 500


def test_of_a_window_counts_what_is_done_when_it_closes() -> None:
    figures = figures_of(kept(), turns(window_s=5.0))
    assert figures["output_tokens_per_s"] == pytest.approx((5 + 5 + 3) / 5)  # the third speaks from 4 to 6 s
    assert figures["recorded_turns_percent"] == 50.0


def test_turns_within_both_budgets_are_counted() -> None:
    figures = figures_of(kept(), turns())
    assert figures["turns_per_s_ttft1_tpot250"] == 1 / 6
    assert figures["turns_per_s_ttft5_tpot250"] == 2 / 6
    assert figures["turns_per_s_ttft20_tpot200"] == 0


def test_ttft_by_turn_is_over_the_sessions_that_got_so_far() -> None:
    assert [(row["turn"], row["n_turns"], row["ttft_p90_s"]) for row in by_turn(turns())] == [(0, 2, 3.0), (1, 1, 2.0)]


def test_progress_is_by_as_many_turns_as_warm_the_server_up() -> None:
    of = turns(measured="replay", warm_up_turns=1)
    assert [(row["bin"], row["n_turns"], row["ttft_p90_s"]) for row in by_progress(of)] == [
        (0, 1, 1.0),
        (1, 1, 3.0),
        (2, 1, 2.0),
    ]
