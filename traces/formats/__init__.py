"""Trace files of others, told apart by their contents: a name promises nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from policies.types import NS_PER_S
from traces.formats.known import FORMATS, Detected, Format, detect
from traces.formats.lines import Spelling, fault, quoted
from traces.formats.order import externally_sorted
from traces.formats.records import OnFault, records, row_fault
from traces.formats.row import Entry, Pieces, TraceRow, first_tokens
from traces.formats.values import Clock

__all__ = [
    "FORMATS",
    "Detected",
    "Entry",
    "Format",
    "OutOfOrderError",
    "Pieces",
    "TraceRow",
    "assumed_unit",
    "detect",
    "externally_sorted",
    "first_tokens",
    "read_entries",
    "read_trace",
]


class OutOfOrderError(ValueError):
    """A row is earlier than the one before it."""


def read_entries(
    path: Path,
    *,
    detected: Detected | None = None,
    clock: Clock | None = None,
    on_fault: OnFault | None = None,
    spelling: Spelling | None = None,
) -> Iterator[Entry]:
    """Read what a trace records, in the order of the file and on its clock.

    Args:
        detected: what the file is, if that is known already.
        clock: reads its times; a clock is for one reading of one file.
        on_fault: told (where, what) of rows with a fault, which are left out; without it the first stops the reading.
        spelling: told how the file is written down.

    Raises:
        ValueError: ``path:line: what; mend``, when the line is reached.
    """
    detected = detected or detect(path)
    reader = detected.format.reader(clock or detected.clock(None), detected.container == "csv")
    for line, record in records(path, detected.container, on_fault, spelling):
        try:
            yield from reader.entries(line, record)
        except ValueError as error:
            if on_fault is None:
                raise row_fault(path, detected.container, line, str(error)) from None
            on_fault(line, str(error))


def read_trace(path: Path, *, time_unit: str | None = None, sort: bool = False) -> Iterator[TraceRow]:
    """Read a trace of any known format with times, one row at a time, in order of time.

    Rows at the same time keep the order of the file.

    Args:
        time_unit: of times that are numbers; ``None``: see ``Clock``.
        sort: sort rows that are not in order, on disk if there are many; else they are refused.

    Raises:
        ValueError: as ``detect`` at once; a faulty row when it is reached; no rows, or a row without a time.
        OutOfOrderError: a row is earlier than the one before it.
    """
    detected = detect(path)
    entries = read_entries(path, detected=detected, clock=detected.clock(time_unit))
    timed = (_timed(path, entry) for entry in entries)
    if sort:
        return _rows(path, externally_sorted(timed, lambda pair: pair[0], weight=lambda pair: pair[1].weight))
    return _rows(path, timed)


def assumed_unit(path: Path, time_unit: str | None) -> str | None:
    """Give the unit in which a trace's first time is read if only its format says so; see ``Clock``."""
    detected = detect(path)
    clock = detected.clock(time_unit)
    next(read_entries(path, detected=detected, clock=clock), None)
    return clock.unit if clock.is_assumed else None


def _rows(path: Path, ordered: Iterable[tuple[int, Entry]]) -> Iterator[TraceRow]:
    first_ns = last_ns = None
    for time_ns, entry in ordered:
        if first_ns is None or last_ns is None:
            first_ns = last_ns = time_ns
        if time_ns < last_ns:
            back_ns = last_ns - time_ns
            raise OutOfOrderError(f"{path}:{entry.line}: time goes back by {back_ns} ns; sort the rows by time")
        last_ns = time_ns
        yield TraceRow(time_ns - first_ns, entry.n_prompt, entry.n_output, entry.prompt, entry.session, entry.think_ns)
    if first_ns is None:
        raise fault(path, 1, "no rows", "give a trace with requests")


def _timed(path: Path, entry: Entry) -> tuple[int, Entry]:
    if entry.time_ns is not None:
        return entry.time_ns, entry
    if entry.think_ns is not None:
        session, think_s = quoted(entry.session or ""), entry.think_ns / NS_PER_S
        what = f"a turn of session {session} begins {think_s:g} s after the one before ended; when that is nobody knows"
    else:
        what = "a request without an arrival time"
    raise fault(path, entry.line, what, "use the file for lengths=rows, with other arrivals")
