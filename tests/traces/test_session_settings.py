from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from traces.sessions.settings import SessionSettings
from traces.sessions.workload import SessionWorkload

FOLDER = Path(__file__).parents[2] / "conf" / "sessions"


def read(name: str, **changes: Any) -> SessionSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml"))
    return SessionSettings(**{**values, **changes})


@pytest.mark.parametrize(("name", "last_tokens"), [("in_house_h100", 74_000), ("in_house_h200", 254_265)])
def test_in_house_sessions_end_with_the_footprint_that_the_crossings_imply(name: str, last_tokens: int) -> None:
    for session in read(name, n_sessions=5).sessions(0):
        last = session.turns[-1]
        assert len(session.turns) == 12
        assert abs(last.n_prompt_tokens + last.n_output_tokens - last_tokens) < 12


def test_turns_that_are_spread_out_differ_and_are_the_same_for_every_seed() -> None:
    loads = [list(read("in_house_h200", n_sessions=3).sessions(seed)) for seed in (0, 1)]
    assert loads[0] == loads[1]
    answers = {turn.n_output_tokens for session in loads[0] for turn in session.turns}
    assert 165 * 0.4 < min(answers) < 110 < 220 < max(answers) < 165 * 1.9


@pytest.mark.parametrize("changes", [{"added_spread": -0.1}, {"output_spread": 1.5}])
def test_a_spread_outside_its_range_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="outside"):
        read("in_house_h200", n_sessions=1, **changes)


def test_the_replay_has_as_many_turns_as_the_papers() -> None:
    # Golden: VAMP table III, 48 sessions and 2103 turns; figure 8: fewer than 12 sessions beyond turn 61.
    sessions = list(read("swe_replay").sessions(3))
    turns = [len(session.turns) for session in sessions]
    assert (len(turns), sum(turns)) == (48, 2103)
    assert min(turns) >= 25
    assert sum(1 for n in turns if n > 61) < 12
    assert len({session.name for session in sessions}) == 48


def test_a_seed_gives_the_same_sessions_again() -> None:
    assert list(read("lmcache").sessions(1)) == list(read("lmcache").sessions(1))
    assert list(read("lmcache").sessions(1)) != list(read("lmcache").sessions(2))


def test_a_replay_has_the_same_sessions_under_every_seed() -> None:
    assert list(read("swe_replay").sessions(1)) == list(read("swe_replay").sessions(2))
    assert list(read("swe_replay", drawn_by=1).sessions(1)) != list(read("swe_replay").sessions(1))


def test_sessions_begin_evenly_within_a_time_if_it_is_given() -> None:
    starts = [session.start_ns for session in read("lmcache", n_sessions=4, start_within_s=2.0).sessions(0)]
    assert starts == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert {session.start_ns for session in read("in_house_h100", n_sessions=3).sessions(0)} == {None}


def test_first_prompts_are_scaled_by_themselves() -> None:
    plain, scaled = (list(read("swe_replay", first_scale=scale).sessions(0)) for scale in (1.0, 2.0))
    for before, after in zip(plain, scaled, strict=True):
        assert abs(after.turns[0].n_new_tokens - 2 * before.turns[0].n_new_tokens) <= 2
        assert [turn.n_new_tokens for turn in after.turns[1:]] == [turn.n_new_tokens for turn in before.turns[1:]]


def test_agents_go_on_with_new_sessions_until_the_window_ends() -> None:
    settings = read("swe_closed")
    assert len(list(islice(settings.sessions(0), 100))) == 100
    loop = settings.play(0, 262_144)
    first = list(loop.first_turns())
    assert len(first) == 48
    assert list(loop.follow(first[0].request, 21_600 * 10**9)) == []


def test_turns_are_those_of_the_fit_unless_they_are_given() -> None:
    turns = [len(session.turns) for session in islice(read("lmcache").sessions(0), 300)]
    assert max(turns) <= 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_at_once": None}, "sessions without end"),
        ({"total_turns": 100}, "total_turns=100"),
        ({"most_turns": None}, "give both, in order"),
        ({"n_turns": 3}, "n_turns"),
        ({"kind": "magic"}, "magic"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read("swe_closed", **changes)


def test_scales_multiply_what_a_fit_draws() -> None:
    plain, scaled = (
        next(read("swe_replay", added_scale=1.0, **of).sessions(1))
        for of in ({"think_scale": 1.0}, {"think_scale": 4.0})
    )
    assert [turn.n_new_tokens for turn in scaled.turns] == [turn.n_new_tokens for turn in plain.turns]
    for before, after in zip(plain.turns[1:], scaled.turns[1:], strict=True):
        assert abs(after.think_ns - 4 * before.think_ns) <= 4_000_000  # whole milliseconds
    with pytest.raises(ValueError, match=r"added_scale"):
        read("in_house_h100", added_scale=2.0)


def test_a_workload_travels_to_another_process_while_it_plays() -> None:
    def sizes(workload: SessionWorkload) -> list[tuple[int, int]]:
        return [(each.request.n_prompt_tokens, each.n_output_tokens) for each in workload.arrivals()]

    here = SessionWorkload(settings=read("swe_replay"), seed=1, max_context_tokens=262_144)
    first = sizes(here)
    assert len(first) == 48
    assert sizes(pickle.loads(pickle.dumps(here))) == first
