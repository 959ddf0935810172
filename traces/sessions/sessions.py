"""Conversations out of a trace, turn by turn, for closed loops: what each turn adds, and how long its user thinks.

Rules:

- The turns of a session are in order of time, equal times in the order of the file. If one of them has no time, the
  order of the file holds, and times that go back in it are refused.
- Requests that failed are left out. A request without a session is one of its own.
- A prompt at least as long as the turn before and its answer together continues both. One at least as long as the
  prompt before continues that prompt alone: the answer came back changed (stripped thoughts, a summary). A shorter
  one starts over: its history was cut, and nothing says where.
- Think times are as recorded: from the end of the turn before. Where only times are known, a turn's start less the end
  of the turn before, 0 if they overlap; where no end is known, less its start, which is too long by one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from policies.serving.prefix_cache import OUTPUT
from traces.formats import Entry, Pieces, detect, externally_sorted, read_entries

Keeps = Literal["all", "prompt", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session.

    Attributes:
        n_prompt_tokens: all of its prompt, >= 1.
        n_new_tokens: of these, tokens behind what it keeps of the turn before.
        keeps: which part of the turn before its prompt begins with: ``all``: prompt and answer.
        think_ns: from the end of the turn before to its start; 0 for the first.
    """

    n_prompt_tokens: int
    n_new_tokens: int
    n_output_tokens: int
    keeps: Keeps
    think_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation.

    Attributes:
        start_ns: since the earliest time in the file; ``None`` if it does not say.
    """

    name: str
    start_ns: int | None
    turns: tuple[Turn, ...]


def read_sessions(path: Path, *, time_unit: str | None = None) -> Iterator[Session]:
    """Read the conversations of a trace in the order in which they start, else in which they appear.

    The file is read twice and sorted by session, on disk if it is long; what is held is one number a session.

    Raises:
        ValueError: a faulty row, or a session whose times go back where they cannot be sorted.
    """
    starts = _starts(path, time_unit)
    ranks = {name: rank for rank, name in enumerate(sorted(starts, key=lambda name: starts[name]))}
    origin_ns = min((start for start, _ in starts.values()), default=0)
    by_session = externally_sorted(
        ((ranks[_name(entry)], entry) for entry in _served(path, time_unit)), key=lambda pair: pair[0]
    )
    for _, group in groupby(by_session, key=lambda pair: pair[0]):
        entries = _in_order(path, [entry for _, entry in group])
        first_ns = entries[0].time_ns
        yield Session(
            name=_name(entries[0]),
            start_ns=None if first_ns is None else first_ns - origin_ns,
            turns=tuple(_turns(entries)),
        )


def prompt_of(turn: Turn, *, session: str, number: int, before: Pieces, before_id: int | None) -> Pieces:
    """Name the content of a turn's prompt, so that a prefix cache finds again what it keeps.

    Args:
        number: of the turn in its session, from 0.
        before: the prompt of the turn before; empty for the first.
        before_id: the request of the turn before, whose answer the prompt quotes.
    """
    kept: Pieces = ()
    if turn.keeps != "nothing" and before_id is not None:
        n_before = sum(n for _, n in before)
        n_answer = turn.n_prompt_tokens - turn.n_new_tokens - n_before
        answer = ((f"{OUTPUT}{before_id}", n_answer),) if turn.keeps == "all" and n_answer else ()
        kept = (*before, *answer)
    name = f"_{session}" if session.startswith(OUTPUT) else session  # streams named like outputs are outputs
    new = ((f"{name}.{number}", turn.n_new_tokens),) if turn.n_new_tokens else ()
    return (*kept, *new)


def _served(path: Path, time_unit: str | None) -> Iterator[Entry]:
    detected = detect(path)
    entries = read_entries(path, detected=detected, clock=detected.clock(time_unit))
    return (entry._replace(prompt=None) for entry in entries if not entry.is_failed)


def _name(entry: Entry) -> str:
    return f"row{entry.line}" if entry.session is None else entry.session


def _starts(path: Path, time_unit: str | None) -> dict[str, tuple[int, int]]:
    """The (earliest time, place in the file) of each session."""
    starts: dict[str, tuple[int, int]] = {}
    for place, entry in enumerate(_served(path, time_unit)):
        known = starts.get(_name(entry))
        if known is None:
            starts[_name(entry)] = (entry.time_ns or 0, place)
        elif entry.time_ns is not None and entry.time_ns < known[0]:
            starts[_name(entry)] = (entry.time_ns, known[1])
    return starts


def _in_order(path: Path, entries: Sequence[Entry]) -> Sequence[Entry]:
    times = [entry.time_ns for entry in entries if entry.time_ns is not None]
    if len(times) == len(entries):
        return sorted(entries, key=lambda entry: entry.time_ns or 0)
    if times != sorted(times):
        raise ValueError(
            f"{path}:{entries[0].line}: the turns of session {_name(entries[0])!r} go back in time, and not all have "
            "one; give each turn a time, or write them in order"
        )
    return entries


def _turns(entries: Iterable[Entry]) -> Iterator[Turn]:
    before: Entry | None = None
    for entry in entries:
        keeps, n_kept = _kept(before, entry)
        yield Turn(
            n_prompt_tokens=entry.n_prompt,
            n_new_tokens=entry.n_prompt - n_kept,
            n_output_tokens=entry.n_output,
            keeps=keeps,
            think_ns=0 if before is None else think_ns(before, entry),
        )
        before = entry


def _kept(before: Entry | None, entry: Entry) -> tuple[Keeps, int]:
    """What a turn keeps of the one before, and how many tokens that is."""
    if before is None or entry.n_prompt < before.n_prompt:
        return "nothing", 0
    with_answer = before.n_prompt + before.n_output
    return ("all", with_answer) if entry.n_prompt >= with_answer else ("prompt", before.n_prompt)


def think_ns(before: Entry, entry: Entry) -> int:
    """How long a user thought between two turns, in ns."""
    if entry.think_ns is not None:
        return entry.think_ns
    if entry.time_ns is None or before.time_ns is None:
        return 0
    return max(entry.time_ns - (before.time_ns if before.end_ns is None else before.end_ns), 0)
