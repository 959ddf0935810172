"""``python -m traces convert FILE OUT``: any trace file as one CSV or JSON lines.

Rows come in order of time, from the earliest, equal times in the order of the file; if a row has no time, all keep the
order of the file. Failed rows stay. Think times that only the ends of answers show are written out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from traces.cli import Parser
from traces.formats import Entry, detect, externally_sorted, read_entries
from traces.formats.records import OnFault, ignored
from traces.formats.values import UNITS_NS
from traces.sessions.sessions import think_ns
from traces.writing.canonical import Line, require_writable, write


def converted(path: Path, *, time_unit: str | None = None, on_fault: OnFault | None = None) -> Iterator[Line]:
    """Read a trace as lines of the one form; the file is read twice.

    Raises:
        ValueError: as ``read_entries``; or there is no row.
    """
    detected = detect(path)

    def entries(told: OnFault | None) -> Iterator[Entry]:
        return read_entries(path, detected=detected, clock=detected.clock(time_unit), on_fault=told)

    first_ns, is_timed = _earliest(path, entries(on_fault))
    again = _thinking(entries(None if on_fault is None else ignored))
    if not is_timed:
        return (_line(entry, first_ns) for entry in again)
    return (
        _line(entry, first_ns)
        for entry in externally_sorted(again, lambda entry: entry.time_ns or 0, weight=lambda entry: entry.weight)
    )


def _earliest(path: Path, entries: Iterator[Entry]) -> tuple[int, bool]:
    """The earliest time, 0 if there is none, and whether every row has one."""
    earliest_ns: int | None = None
    n_rows = n_timed = 0
    for entry in entries:
        n_rows += 1
        if entry.time_ns is not None:
            n_timed += 1
            earliest_ns = entry.time_ns if earliest_ns is None else min(earliest_ns, entry.time_ns)
    if not n_rows:
        raise ValueError(f"{path}:1: no rows; give a trace with requests")
    return earliest_ns or 0, n_timed == n_rows


def _thinking(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Fill in the think times that the ends of answers show."""
    before: dict[str, Entry] = {}
    for entry in entries:
        if entry.session is None or entry.end_ns is None:
            yield entry
            continue
        last = before.get(entry.session)
        before[entry.session] = entry._replace(prompt=None)
        yield entry if last is None else entry._replace(think_ns=think_ns(last, entry))


def _line(entry: Entry, first_ns: int) -> Line:
    return Line(
        arrival_ns=None if entry.time_ns is None else entry.time_ns - first_ns,
        n_prompt_tokens=entry.n_prompt,
        n_output_tokens=entry.n_output,
        session=entry.session,
        think_ns=entry.think_ns,
        prompt=entry.prompt,
    )


def main(arguments: Sequence[str]) -> int:
    """Carry out ``convert``.

    Raises:
        ValueError: the command line is wrong, or a file is not usable.
    """
    parser = Parser(prog="python -m traces convert", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("out", type=Path, metavar="OUT", help="ends in .csv or .jsonl, or with .gz behind")
    parser.add_argument("--time-unit", choices=tuple(UNITS_NS), help="of times that are numbers")
    parser.add_argument("--skip-faulty", action="store_true", help="leave out rows that cannot be read, and count them")
    parser.add_argument("--force", action="store_true", help="write over OUT")
    options = parser.parse_args(arguments)
    require_writable(options.out, is_forced=options.force, other_than=options.file)
    faults: list[str] = []

    def keep(line: int, what: str) -> None:
        faults.append(f"{options.file}:{line}: {what}")

    lines = converted(options.file, time_unit=options.time_unit, on_fault=keep if options.skip_faulty else None)
    n_lines = write(options.out, lines)
    print(f"{options.out}: {n_lines} requests")
    if faults:
        print(f"left out {len(faults)} rows that cannot be read, the first: {faults[0]}", file=sys.stderr)
    return 0
