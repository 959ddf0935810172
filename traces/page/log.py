"""The decision log: what changed and why, in plain words, as many lines as a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from policies.decision import Reason
from policies.remap.how_many import hard_cap
from policies.types import NS_PER_S
from policies.view import Ask
from traces.results.changes import Change, changes_of, in_words, what, why
from traces.results.folder import RunInfo, RunTables

MOST_LINES = 200
"""Of a log; of a longer one the first and the last half of them are shown. Ours: some screens."""

TOGETHER_NS = NS_PER_S
"""Ours: the same change again within this time is one line with the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: when, in seconds, how many decisions, what they changed and why."""

    at: str
    n: int
    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How often a question was answered in one way."""

    ask: str
    reason: str
    n: int
    n_changed: int
    n_refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The decisions of a run.

    Attributes:
        head, tail: entries; ``n_left_out`` lie between them.
        answers: every question with its answer, the most frequent first.
    """

    head: Sequence[Entry]
    tail: Sequence[Entry]
    n_left_out: int
    answers: Sequence[Answer]

    @property
    def n(self) -> int:
        """Entries, also those left out."""
        return len(self.head) + len(self.tail) + self.n_left_out


def log_of(run: RunTables) -> Log:
    """Tell the decisions of a run that has kept them."""
    entries = list(_entries(run))
    half = MOST_LINES // 2
    if len(entries) <= MOST_LINES:
        return Log(head=entries, tail=(), n_left_out=0, answers=_answers(run))
    return Log(head=entries[:half], tail=entries[-half:], n_left_out=len(entries) - MOST_LINES, answers=_answers(run))


def cap_of(info: RunInfo, n_layers: int) -> int | None:
    """Layers that a model may lend at most, if the policy has such a setting."""
    for settings in cast("Mapping[str, Mapping[str, Any]]", info.config.get("policy", {})).values():
        share = settings.get("max_remapped_fraction")
        if isinstance(share, int | float):
            return hard_cap(n_layers, share)
    return None


def _entries(run: RunTables) -> Iterator[Entry]:
    models = [model.name for model in run.info.models]
    for together in _together(changes_of(run)):
        first, last = together[0], together[-1]
        whole = replace(
            last,
            n_short_blocks=max(change.n_short_blocks for change in together),
            lent=tuple(loan for change in together for loan in change.lent),
            returned=tuple(loan for change in together for loan in change.returned),
        )
        cap = None if whole.lender is None else cap_of(run.info, whole.n_layers)
        span = f"{first.at_ns / NS_PER_S:,.3f}" + (f" to {last.at_ns / NS_PER_S:,.3f}" if len(together) > 1 else "")
        yield Entry(at=span, n=len(together), what=what(whole, models, cap), why=why(whole, models))


def _together(changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Put changes of one kind together that follow each other closely."""
    group: list[Change] = []
    for change in changes:
        if group and (_kind(change) != _kind(group[-1]) or change.at_ns - group[-1].at_ns > TOGETHER_NS):
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _kind(change: Change) -> object:
    borrowers = {borrower for _, borrower in change.lent}, {borrower for _, borrower in change.returned}
    return change.lender, change.ask, change.asker, change.reason, borrowers


def _answers(run: RunTables) -> list[Answer]:
    asked, changed, refused = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for rows in run.pieces("decisions", ("ask", "reason", "changed", "refused")):
        pairs = list(zip(rows["ask"].tolist(), rows["reason"].tolist(), strict=True))
        asked.update(pairs)
        for counts, flags in ((changed, rows["changed"]), (refused, rows["refused"])):
            counts.update(pair for pair, flag in zip(pairs, flags.tolist(), strict=True) if flag)
    return [
        Answer(
            ask=in_words(ask, Ask),
            reason=in_words(reason, Reason),
            n=n,
            n_changed=changed[ask, reason],
            n_refused=refused[ask, reason],
        )
        for (ask, reason), n in asked.most_common()
    ]
