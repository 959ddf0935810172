"""Trace files of others, told apart by their contents: a name promises nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from traces.formats import azure
from traces.formats.lines import fault, numbered_lines
from traces.formats.row import TraceRow

__all__ = ["FORMATS", "Format", "TraceRow", "detect", "read_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of trace file.

    Attributes:
        sniff: tells from the first line whether a file is of this kind.
        read: its rows in order of time, one at a time.
    """

    name: str
    sniff: Callable[[str], bool]
    read: Callable[[Path], Iterator[TraceRow]]


FORMATS = (Format(name="azure", sniff=azure.sniff, read=azure.read),)
"""In the order in which they are tried; a new format is one file and one entry."""


def detect(path: Path) -> Format:
    """Find the format of a file from its first line.

    Raises:
        ValueError: the file cannot be read, is empty, or is of no known format.
    """
    first = next(numbered_lines(path), None)
    if first is None:
        raise fault(path, 1, "the file is empty", "give a trace with requests")
    for kind in FORMATS:
        if kind.sniff(first[1]):
            return kind
    known = ", ".join(kind.name for kind in FORMATS)
    raise fault(path, 1, "not a trace of a known format", f"known formats: {known}")


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Read a trace of any known format, one row at a time, in order of time.

    Raises:
        ValueError: as ``detect`` at once; a faulty row when it is reached.
    """
    return detect(path).read(path)
