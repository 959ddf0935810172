"""Everything unusual that a trace file can have: what it is, and the rule by which it is read all the same."""

from __future__ import annotations

from dataclasses import dataclass, field

ODDITIES = {
    "no_rows": "no requests: refused by a run",
    "fault": "a row that cannot be read: left out here, refused by a run",
    "byte_order_mark": "a byte order mark in front: skipped",
    "crlf": "lines end with CR LF: read like LF",
    "no_final_newline": "the last line has no end: read like any other",
    "blank_line": "blank lines: skipped",
    "unknown_column": "columns of unknown meaning: left out",
    "count_as_string": "token counts as strings: read as numbers",
    "count_spelled": "token counts with a fraction of zero, an exponent or blanks: read as whole numbers",
    "time_as_string": "times that are numbers as strings: read as numbers",
    "mixed_dates": "dates with other digits or another zone than the first: read, exact; without a zone UTC",
    "no_time": "requests without an arrival time: for lengths=rows only",
    "turn_without_time": "turns that begin a delay after the turn before has ended: only a closed loop can replay them",
    "turn_of_increments": "turns that carry only what they add: their prompt is the turn before, its answer, and that",
    "nested": "several calls in one record: each is a turn",
    "estimated_tokens": "texts: one token for four bytes, an estimate",
    "out_of_order": "rows earlier than the row before: sorted by time; equal times keep the order of the file",
    "tie": "rows at the time of the row before: the order of the file decides",
    "same_as_before": "rows with time and lengths of the row before: both count",
    "no_output": "no output tokens: a failed request, not replayed",
    "no_prompt": "no prompt tokens: a failed request, not replayed",
    "error": "recorded as an error: replayed if it has tokens",
    "hashes_disagree": "more or fewer ids than the prompt has blocks: named from the front, the rest shared by nobody",
    "wide_hash": "ids beyond 32 bits: compared in full",
    "no_identity": "rows without ids where others have them: their prompts are shared by nobody",
    "no_session": "rows without a session where others have one: requests of their own",
    "session_goes_back": "turns earlier than the turn before in the file: sessions take their turns in order of time",
    "session_shrinks": "turns with a shorter prompt than the turn before: history was cut; the prompt counts as it is",
    "session_overlaps": "turns that begin before the answer of the turn before has ended: by time they overlap, too",
    "warm_up": "a first turn of up to 16 tokens and one of output before a hundred times as many: a ping; replayed",
    "overlong": "prompt and output exceed the model's context: see workload.overlong",
    "doubtful_unit": "times whose unit is only assumed, with a rate that few servers see: give --time-unit, "
    "arrivals.time_unit",
    "even_gaps": "all gaps alike: made, not recorded",
    "coarse_times": "times that differ are a second or more apart, and many are equal: figures for shorter windows are "
    "an artefact of it, and ties decide",
    "idle_gap": "gaps of more than a minute",
    "atom": "one length makes up more than 2 % of the rows and more than ten times its neighbours: often a limit",
    "no_prefix_identity": "nothing says which prompts share a prefix: no hit rate can be told, none is made up",
}
"""By key. A rule holds for ``python -m sim run``, ``traces convert`` and ``traces inspect`` alike."""

MOST_LINES = 1000
"""Row numbers that are kept of each; the count goes on."""


@dataclass(slots=True)
class Find:
    """How often something unusual was found, and where first."""

    count: int = 0
    lines: list[int] = field(default_factory=list[int])
    details: list[str] = field(default_factory=list[str])


class Finds:
    """Counts what is unusual, in the order in which it was first found."""

    def __init__(self) -> None:
        self.by_key: dict[str, Find] = {}

    def add(self, key: str, line: int | None = None, detail: str | None = None, count: int = 1) -> None:
        """Count something, with the row where it is and what it is in particular, if there is more to say."""
        assert key in ODDITIES
        find = self.by_key.setdefault(key, Find())
        find.count += count
        if line is not None and len(find.lines) < MOST_LINES:
            find.lines.append(line)
        if detail is not None and len(find.details) < MOST_LINES:
            find.details.append(detail)
