"""Conversations in a trace: turns, what each adds, how long users think, and what is odd about their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traces.formats import Entry
from traces.inspect.lengths import LengthStatistics

PING_TOKENS = 16
PING_FACTOR = 100
MS = 10**6


@dataclass(slots=True)
class _Session:
    n_turns: int
    last: Entry


class SessionStatistics:
    """Turns in the order of the file; what is kept are a count and the last turn of each session."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._added = LengthStatistics()
        self._thinking_ms = LengthStatistics()
        self._after_ms = LengthStatistics()

    def add(self, entry: Entry) -> Iterator[tuple[str, int]]:
        """Take a turn; yields (what is odd about it or the turn before, line)."""
        if entry.session is None:
            return
        session = self._sessions.get(entry.session)
        bare = entry._replace(prompt=None)  # contents are long
        if session is None:
            self._sessions[entry.session] = _Session(1, bare)
            return
        before, session.last = session.last, bare
        session.n_turns += 1
        if entry.n_prompt < before.n_prompt:
            yield "session_shrinks", entry.line
        elif not entry.is_failed:
            self._added.add(max(entry.n_prompt - before.n_prompt - before.n_output, 0))
        if session.n_turns == 2 and _is_ping(before) and entry.n_prompt >= PING_FACTOR * before.n_prompt:
            yield "warm_up", before.line
        yield from self._timed(before, entry)

    def _timed(self, before: Entry, entry: Entry) -> Iterator[tuple[str, int]]:
        if entry.think_ns is not None:
            self._thinking_ms.add(entry.think_ns // MS)
        if entry.time_ns is None or before.time_ns is None:
            return
        if entry.time_ns < before.time_ns:
            yield "session_goes_back", entry.line
            return
        self._after_ms.add((entry.time_ns - before.time_ns) // MS)
        if before.end_ns is not None:
            if entry.think_ns is None:
                self._thinking_ms.add(max(entry.time_ns - before.end_ns, 0) // MS)
            if entry.time_ns < before.end_ns:
                yield "session_overlaps", entry.line

    def __len__(self) -> int:
        return len(self._sessions)

    def summary(self) -> dict[str, object]:
        """The figures, by name; times in seconds."""
        turns = LengthStatistics()
        for session in self._sessions.values():
            turns.add(session.n_turns)
        n_single = sum(session.n_turns == 1 for session in self._sessions.values())
        return {
            "sessions": len(self._sessions),
            "single_turn_share": n_single / len(self._sessions) if self._sessions else None,
            "turns_per_session": turns.summary(),
            "tokens_added_per_turn": self._added.summary(),
            "think_s": self._thinking_ms.summary(scale=1e-3),
            "start_to_start_s": self._after_ms.summary(scale=1e-3),
        }


def _is_ping(entry: Entry) -> bool:
    return 0 < entry.n_prompt <= PING_TOKENS and entry.n_output == 1
