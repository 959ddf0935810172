"""Every format that is read, and how a file is told to be of one: by its columns, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from traces.formats.flat import FlatReader
from traces.formats.layout import LAYOUTS, Layout, words
from traces.formats.lines import fault, quoted
from traces.formats.records import HEADLESS, Container, Record, columns_of, container_of, ignored, records
from traces.formats.row import Entry
from traces.formats.special import (
    LLMSERVINGSIM,
    RAGPULSE,
    ConversationReader,
    InstructionReader,
    NestedReader,
    StepsReader,
)
from traces.formats.values import Clock, is_value

SAMPLE = 16
"""Records that are looked at: some leave out what others have."""

MAX_NAMED = 12
"""Columns that a message names."""


class Reader(Protocol):
    """Makes entries of the records of one file, in the order of the file."""

    def entries(self, line: int, record: Record) -> Iterator[Entry]:
        """Read one record.

        Raises:
            ValueError: what is wrong with it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of trace file.

    Attributes:
        fits: tells from the columns and the first record whether a file is of this kind.
        reader: makes the reader of one file.
        layout: of formats with one request a record.
        has_texts: tokens are estimated from texts.
    """

    name: str
    source: str
    fits: Callable[[frozenset[str], Record], bool]
    reader: Callable[[Clock, bool], Reader]
    layout: Layout | None = None


def _by_layout(layout: Layout) -> Format:
    return Format(
        name=layout.name,
        source=layout.source,
        fits=lambda columns, _: layout.needs <= columns,
        reader=lambda clock, is_text: FlatReader(layout, clock, is_text=is_text),
        layout=layout,
    )


def _without_times(reader: Callable[[], Reader]) -> Callable[[Clock, bool], Reader]:
    def made(clock: Clock, is_text: bool) -> Reader:
        del clock, is_text
        return reader()

    return made


FORMATS = (
    Format(
        name=RAGPULSE.name,
        source=RAGPULSE.source,
        fits=lambda columns, first: RAGPULSE.needs <= columns and isinstance(first.get("hash_ids"), dict),
        reader=lambda clock, is_text: FlatReader(RAGPULSE, clock, is_text=is_text),
        layout=RAGPULSE,
    ),
    Format(
        name=LLMSERVINGSIM.name,
        source=LLMSERVINGSIM.source,
        fits=lambda columns, _: (
            LLMSERVINGSIM.needs <= columns and ("sub_requests" in columns or words("input_toks,output_toks") <= columns)
        ),
        reader=lambda clock, is_text: NestedReader(LLMSERVINGSIM, clock, is_text=is_text),
        layout=LLMSERVINGSIM,
    ),
    *(_by_layout(layout) for layout in LAYOUTS),
    Format(
        name="sweagent",
        source="lengths of SWE-agent trajectories (github.com/multi-swe-bench/experiments): sessions without times",
        fits=lambda columns, _: words("task,initial_context,response,observation") <= columns,
        reader=_without_times(StepsReader),
    ),
    Format(
        name="sharegpt",
        source="ShareGPT: conversations as texts",
        fits=lambda columns, _: not columns.isdisjoint(words("conversations,conversation,messages,items")),
        reader=_without_times(ConversationReader),
    ),
    Format(
        name="alpaca",
        source="github.com/tatsu-lab/stanford_alpaca: instructions and answers as texts",
        fits=lambda columns, _: words("instruction,output") <= columns,
        reader=_without_times(InstructionReader),
    ),
)
"""In the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What a file is.

    Attributes:
        columns: of its header, or of its first records.
    """

    format: Format
    container: Container
    columns: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name

    @property
    def unknown(self) -> list[str]:
        """Columns of unknown meaning."""
        return sorted(self.columns - self.format.layout.known) if self.format.layout is not None else []

    def clock(self, time_unit: str | None) -> Clock:
        """Make the clock that reads the times of one file."""
        layout = self.format.layout
        return Clock(layout.unit if layout else None, time_unit, is_named=layout.is_named_unit if layout else False)


def detect(path: Path) -> Detected:
    """Find the format of a file from its contents.

    Raises:
        ValueError: the file cannot be read, is empty, or is of no known format.
    """
    container = container_of(path)
    good = [record for _, record in islice(records(path, container, ignored), SAMPLE)]
    columns = frozenset(columns_of(path)) if container == "csv" else frozenset(key for each in good for key in each)
    first: Record = good[0] if good else {}
    for kind in FORMATS:
        if kind.fits(columns, first):
            return Detected(kind, container, columns)
    if container == "json" and not good:
        raise fault(path, 1, "an array without objects", "give a trace with requests")
    if not columns:
        list(islice(records(path, container), 1))  # says what is wrong with the first record
    raise fault(path, 1, *_unknown(columns, first))


def _unknown(columns: frozenset[str], first: Record) -> tuple[str, str]:
    """Say what a file lacks to be of the format that it is most like, and the mend."""
    if any(map(is_value, columns)):
        return HEADLESS
    for key, value in first.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return f"an object with a list of objects as its {quoted(key)}", "give that list alone"
    layouts = [kind.layout for kind in FORMATS if kind.layout is not None]
    closest = max(layouts, key=lambda layout: (len(layout.needs & columns) / len(layout.needs), layout.name == "azure"))
    missing = sorted(closest.needs - columns)
    if len(missing) < len(closest.needs) / 2:
        return f"not a trace of a known format: like {closest.name} without {', '.join(missing)}", "add these columns"
    named = ", ".join(quoted(column) for column in sorted(columns)[:MAX_NAMED])
    return f"not a trace of a known format ({named})", f"known formats: {', '.join(kind.name for kind in FORMATS)}"
