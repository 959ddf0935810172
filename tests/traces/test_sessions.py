from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S, Request
from traces.formats import Pieces
from traces.sessions.sessions import Session, prompt_of, read_sessions

MS = 10**6


def sessions_of(tmp_path: Path, rows: Sequence[dict[str, object]]) -> list[Session]:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return list(read_sessions(path))


def turn(session: str, time_ms: int | None, n_prompt: int, n_output: int, **other: object) -> dict[str, object]:
    named = {} if time_ms is None else {"timestamp": time_ms}
    return {**named, "session_id": session, "input_length": n_prompt, "output_length": n_output, **other}


def test_sessions_come_in_the_order_of_their_starts_with_what_each_turn_adds(tmp_path: Path) -> None:
    rows = [turn("a", 50, 10, 5), turn("b", 20, 7, 2), turn("a", 90, 25, 5), turn("b", 60, 9, 1)]
    b, a = sessions_of(tmp_path, rows)
    assert (b.name, b.start_ns, a.name, a.start_ns) == ("b", 0, "a", 30 * MS)
    assert [(t.n_prompt_tokens, t.n_new_tokens, t.keeps, t.think_ns) for t in a.turns] == [
        (10, 10, "nothing", 0),
        (25, 10, "all", 40 * MS),
    ]


def test_a_history_that_shrinks_starts_over_and_an_answer_that_changed_is_not_kept(tmp_path: Path) -> None:
    rows = [turn("a", 0, 100, 50), turn("a", 1, 120, 5), turn("a", 2, 60, 5)]
    (session,) = sessions_of(tmp_path, rows)
    assert [(t.keeps, t.n_new_tokens) for t in session.turns] == [("nothing", 100), ("prompt", 20), ("nothing", 60)]


def test_turns_that_go_back_in_time_are_taken_in_order_of_time(tmp_path: Path) -> None:
    (session,) = sessions_of(tmp_path, [turn("a", 30, 3, 1), turn("a", 20, 2, 1), turn("a", 10, 1, 1)])
    assert [t.n_prompt_tokens for t in session.turns] == [1, 2, 3]


def test_times_that_go_back_where_not_all_turns_have_one_are_refused(tmp_path: Path) -> None:
    rows = [turn("a", 30, 3, 1), turn("a", None, 2, 1, delay=5), turn("a", 10, 1, 1)]
    with pytest.raises(ValueError, match=r":1: the turns of session 'a' go back in time.*; give each turn a time"):
        sessions_of(tmp_path, rows)


def test_a_delay_is_the_think_time_and_failed_turns_are_left_out(tmp_path: Path) -> None:
    rows = [turn("a", 0, 10, 5), turn("a", None, 3, 0, delay=7), turn("a", None, 4, 2, delay=9)]
    (session,) = sessions_of(tmp_path, rows)
    assert [(t.n_prompt_tokens, t.think_ns) for t in session.turns] == [(10, 0), (22, 9 * MS)]


def test_a_session_log_has_the_published_turns_and_overlaps_count_as_no_thinking(published: Path) -> None:
    # Golden: 46 sessions, 2294 calls of which 148 failed; end to start P50 3.1 s over all pairs of calls.
    sessions = list(read_sessions(published / "exgentic_swebench_claude_code.jsonl.gz"))
    assert len(sessions) == 46
    assert sum(len(session.turns) for session in sessions) == 2294 - 148
    assert [s.start_ns for s in sessions] == sorted(s.start_ns or 0 for s in sessions)
    thinking = sorted(t.think_ns for s in sessions for t in s.turns[1:])
    assert thinking[len(thinking) // 2] / NS_PER_S == pytest.approx(3.1, rel=0.1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12))
def test_prompts_that_keep_a_history_quote_it_and_add_up(tmp_path: Path, lengths: list[tuple[int, int]]) -> None:
    rows = [turn("a", number, n_prompt, n_output) for number, (n_prompt, n_output) in enumerate(lengths)]
    (session,) = sessions_of(tmp_path, rows)
    before: Pieces = ()
    for number, each in enumerate(session.turns):
        prompt = prompt_of(each, session="a", number=number, before=before, before_id=number - 1 if number else None)
        Request(
            request_id=number,
            model=0,
            arrival_ns=0,
            n_prompt_tokens=each.n_prompt_tokens,
            max_output_tokens=1,
            prompt=prompt,
        )
        if each.keeps != "nothing":
            assert prompt[: len(before)] == before
        if each.keeps == "all":
            assert prompt[len(before)] == (f"out{number - 1}", session.turns[number - 1].n_output_tokens)
        before = prompt
