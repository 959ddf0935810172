from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from policies.decision import Reason
from policies.view import Ask
from tests.page.runs import run
from tests.results.scripted import decide, info
from traces.page.log import MOST_LINES, log_of
from traces.results.changes import Change, in_words, what, why
from traces.results.folder import read_run
from traces.results.results import RunWriter


def test_a_log_says_what_changed_and_why_and_joins_what_follows_closely(tmp_path: Path) -> None:
    log = log_of(run(tmp_path))
    short = "KV exhausted: the first waiting request of right is 2 blocks short; a layer of an inactive model is lent"
    assert [(entry.at, entry.n, entry.what) for entry in log.head] == [
        ("1.000 to 1.500", 2, "lent 2 layers of left to the KV cache of right; 2 lent now, cap 2"),
        ("3.000", 1, "changed nothing: what was wanted did not fit"),
        ("9.000", 1, "gave 1 layer of left back from right; 1 lent now, cap 2"),
    ]
    assert {entry.why for entry in log.head} == {short}
    (answer,) = log.answers
    assert (answer.n, answer.n_changed, answer.n_refused) == (4, 3, 1)


def test_of_a_long_log_the_beginning_and_the_end_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    n = 2 * MOST_LINES
    with RunWriter(tmp_path, info()) as writer:
        for number in range(n):
            decide(writer, 2.0 * number, [1] * (number % 2), [1] * (1 - number % 2))
    log = log_of(read_run(tmp_path))
    assert (len(log.head) + len(log.tail), log.n_left_out, log.n) == (MOST_LINES, n - MOST_LINES, n)
    assert log.head[0].at == "0.000"
    assert log.tail[-1].at == f"{2.0 * (n - 1):,.3f}"


@given(st.sampled_from(Ask), st.sampled_from(Reason), st.integers(0, 2), st.integers(0, 5), st.integers(0, 3))
def test_every_question_and_every_reason_can_be_said(
    ask: Ask, reason: Reason, n_homes: int, n_short: int, n_lent: int
) -> None:
    loans = tuple((home, 1) for home in range(n_homes))
    change = Change(
        at_ns=0, step=0, ask=ask.name.lower(), asker=1, reason=reason.name.lower(), n_short_blocks=n_short, lender=0,
        n_layers=4, lent=loans, n_lent=n_lent, n_cycling=2, n_slots=1,
    )  # fmt: skip
    assert reason.value in why(change, ["left", "right"])
    assert "left" in what(change, ["left", "right"], None)


def test_a_label_of_another_version_speaks_for_itself() -> None:
    assert in_words("lend_experts", Reason) == "lend experts"
