"""Copies between host memory and HBM during a span of a run: a table that a run keeps if it is asked to.

A run makes thousands of copies a second, so they are kept for a window of time only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from traces.results.arrays import values_in
from traces.results.rows import Int32, Label, columns_of
from traces.results.tables import TableWriter, stored

NAME = "copies"

NEVER = 2**62
"""The end of a copy that is not known yet."""


class CopyKind(Enum):
    """What is copied, and in which direction."""

    FETCH = "a layer's weights to the device"
    SWAP_IN = "KV cache to the device"
    SWAP_OUT = "KV cache to the host"


class Timed(Protocol):
    """A copy whose times may still be postponed while others are requested."""

    start_ns: int
    end_ns: int


@dataclass(init=False, repr=False, eq=False)
class CopyRow:
    """One copy.

    Attributes:
        layer, home: of a fetch: what, and into which home; ``None`` of swapped KV.
        requested_ns: when it was put in the link's queue.
    """

    model: Int32
    kind: Label
    layer: int | None
    home: int | None
    n_bytes: int
    requested_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMade:
    """One copy, as it is read."""

    model: int
    kind: str
    layer: int
    home: int
    n_bytes: int
    requested_ns: int
    start_ns: int
    end_ns: int


class CopyLog:
    """Takes note of copies that may overlap a window, as they are requested.

    Args:
        from_ns, until_ns: the window.
    """

    def __init__(self, from_ns: int, until_ns: int) -> None:
        self._from_ns, self._until_ns = from_ns, until_ns
        self._noted: list[tuple[int, CopyKind, int | None, int | None, int, int, Timed]] = []

    def note(
        self, model: int, kind: CopyKind, layer: int | None, home: int | None, n_bytes: int, at_ns: int, copy: Timed
    ) -> None:
        """Take note of a copy that was requested at ``at_ns``."""
        if copy.end_ns >= self._from_ns and at_ns <= self._until_ns:
            self._noted.append((model, kind, layer, home, n_bytes, at_ns, copy))

    def write(self, folder: Path) -> None:
        """Leave the table in a run's folder, in order of start, once no copy can be postponed any more.

        A copy that was still under way when the run ended is left out.
        """
        ended = (each for each in self._noted if each[-1].end_ns < NEVER)
        noted = sorted(ended, key=lambda each: (each[-1].start_ns, each[5]))
        rows = [
            (*each[:-1], each[-1].start_ns, each[-1].end_ns) for each in noted if each[-1].start_ns <= self._until_ns
        ]
        columns: Sequence[Sequence[object]] = list(zip(*rows, strict=True)) or [()] * len(columns_of(CopyRow))
        table = TableWriter(folder, NAME, CopyRow, rows_per_part=max(1, len(rows)))
        table.extend(columns)
        table.close()


def has_copies(folder: Path) -> bool:
    """Tell whether a run has kept the table."""
    return (folder / f"{NAME}.parquet").exists()


def copies_of(folder: Path) -> Iterator[CopyMade]:
    """Read the table, in order of start; none if it was not kept."""
    if not has_copies(folder):
        return
    columns = columns_of(CopyRow)
    for piece in stored(folder, NAME, CopyRow):
        values = [values_in(column, piece[column.name]) for column in columns]
        for row in zip(*(list(each) for each in values), strict=True):
            facts = {column.name: value for column, value in zip(columns, row, strict=True)}
            kind = str(facts.pop("kind"))
            yield CopyMade(kind=kind, **{name: int(value) for name, value in facts.items()})
