"""The Azure LLM inference trace of 2023: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: github.com/Azure/AzurePublicDataset ``data/AzureLLMInferenceTrace_{code,conv}.csv``
(CC-BY-4.0; Patel et al., ISCA 2024). As published: CRLF, seven fractional digits, no
final line end. The release of 2024 has the same columns, drops a zero fraction and
carries ``+00:00``; both are read.

Rules: rows at the same time keep the order of the file. A row earlier than the one
before is refused (no published file has one: such a file was joined or damaged).
Blank lines are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from policies.types import NS_PER_S
from traces.formats.lines import fault, numbered_lines, quoted
from traces.formats.row import TraceRow

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

MAX_TOKENS = 2**31 - 1
"""Above it a number is no token count: the column types of such files are 32-bit."""

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sniff(first_line: str) -> bool:
    """Tell whether a file begins like this format: one of its columns is named."""
    return not set(COLUMNS).isdisjoint(first_line.split(","))


def read(path: Path) -> Iterator[TraceRow]:
    """Read the rows one at a time, in the order of the file, which is that of time.

    Raises:
        ValueError: ``path:line: what; mend``, when the line is reached.
    """
    lines = numbered_lines(path)
    _, header = next(lines, (1, ""))
    order = _order(path, header)
    first_ns = last_ns = None
    for number, line in lines:
        if not line:
            continue
        try:
            stamp_ns, n_prompt, n_output = _parsed(line, order)
        except ValueError as error:
            raise fault(path, number, str(error), "correct or remove the row") from None
        if first_ns is None or last_ns is None:
            first_ns = last_ns = stamp_ns
        if stamp_ns < last_ns:
            raise fault(path, number, f"time goes back by {last_ns - stamp_ns} ns", "sort the rows by TIMESTAMP")
        last_ns = stamp_ns
        yield TraceRow(stamp_ns - first_ns, n_prompt, n_output)
    if first_ns is None:
        raise fault(path, 1, "no rows after the header", "give a trace with requests")


def _order(path: Path, header: str) -> tuple[int, int, int]:
    """Where each of ``COLUMNS`` stands; a column of unknown meaning is refused, not skipped."""
    names = header.split(",")
    missing = [name for name in COLUMNS if name not in names]
    unknown = [quoted(name) for name in names if name not in COLUMNS]
    if missing:
        raise fault(path, 1, f"column {', '.join(missing)} is missing", f"name the columns {','.join(COLUMNS)}")
    if unknown or len(names) != len(COLUMNS):
        what = f"column {', '.join(unknown)} is unknown" if unknown else "a column is there twice"
        raise fault(path, 1, what, f"keep only {','.join(COLUMNS)}")
    stamp, prompt, output = (names.index(name) for name in COLUMNS)
    return stamp, prompt, output


def _parsed(line: str, order: tuple[int, int, int]) -> tuple[int, int, int]:
    """(time in ns, prompt tokens, output tokens) of one row."""
    fields = line.split(",")
    if len(fields) != len(COLUMNS):
        raise ValueError(f"{len(fields)} fields, not {len(COLUMNS)}")
    stamp, prompt, output = order
    return _stamp_ns(fields[stamp]), _tokens(fields[prompt], COLUMNS[1]), _tokens(fields[output], COLUMNS[2])


def _stamp_ns(text: str) -> int:
    """Nanoseconds since 1970, exact: ``strptime`` and floats keep only six digits."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"TIMESTAMP {quoted(text)} is not like 2023-11-16 18:17:03.9799600")
    second, fraction, offset = match.groups()
    zone = offset if offset not in (None, "Z") else "+00:00"
    try:
        since = datetime.fromisoformat(second + zone) - _EPOCH
    except ValueError:
        raise ValueError(f"TIMESTAMP {quoted(text)} is no date and time") from None
    return (since.days * 86_400 + since.seconds) * NS_PER_S + int((fraction or "").ljust(9, "0"))


def _tokens(text: str, column: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{column} {quoted(text)} is not a whole number")
    if len(digits) > len(str(MAX_TOKENS)) or int(digits) > MAX_TOKENS:
        raise ValueError(f"{column} {quoted(text)} is above {MAX_TOKENS} tokens")
    if int(text) < 0:
        raise ValueError(f"{column} {text} is negative")
    return int(text)
