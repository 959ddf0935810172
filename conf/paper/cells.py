"""Cells of the tables that an experiment leaves beside its runs: a column, of a system, at a point, over the seeds."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import cast

FILES = ("sessions", "turns", "progress", "bins", "experts")
"""What ``traces/sessions/files.py`` and ``conf/experts_csv.py`` write, without the suffix."""

POINT = ("system", "n_sessions", "turn", "bin", "begin_s")
"""Columns that say what a row is of; rows that have all of them in common differ by the seed."""

TERM = re.compile(r"([A-Za-z]\w*)\.(\w+)(?:\[(\w+)=([\w.]+)\])?")
"""``SYSTEM.COLUMN`` or ``SYSTEM.COLUMN[KEY=VALUE]``, of ``sessions.csv``."""

Row = Mapping[str, str]
Tables = Mapping[str, Sequence[Row]]


def read_tables(folder: Path) -> Tables:
    """Read the tables that are there, by the names in ``FILES``."""
    return {name: _rows(folder / f"{name}.csv") for name in FILES if (folder / f"{name}.csv").exists()}


def joined(tables: Sequence[Tables]) -> Tables:
    """The tables of several experiments as one."""
    return {name: [row for each in tables for row in each.get(name, ())] for name in FILES}


def cells(rows: Sequence[Row], column: str, systems: Sequence[str], where: Mapping[str, object]) -> list[float]:
    """Values of a column, one a point in the order of the rows, each the mean over its seeds.

    Args:
        rows: of one table.
        systems: whose; none: of all.
        where: keeps rows whose columns have these values, or values from the first to the last of two.

    Returns:
        Nothing where the cells of these rows are empty: there was nothing to measure.

    Raises:
        ValueError: there is no such column, or no such row.
    """
    if rows and (unknown := [name for name in (column, *where) if name not in rows[0]]):
        raise ValueError(f"no column {unknown[0]}; there are {', '.join(rows[0])}")
    kept = [row for row in rows if (not systems or row["system"] in systems) and _is_kept(row, where)]
    if not kept:
        raise ValueError(f"no row of {', '.join(systems) or 'any system'} with {dict(where)}")
    by_point: dict[tuple[str | None, ...], list[float]] = defaultdict(list)
    for row in kept:
        if row[column] != "":
            by_point[tuple(row.get(name) for name in POINT)].append(float(row[column]))
    return [fmean(values) for values in by_point.values()]


def term(text: str, tables: Tables) -> list[float] | None:
    """The values that a term of an ordering names, see ``TERM`` and ``cells``; ``None`` if it names no cell.

    Raises:
        ValueError: as ``cells``.
    """
    if (match := TERM.fullmatch(text)) is None:
        return None
    system, column, key, value = match.groups()
    return cells(tables.get("sessions", ()), column, [system], {} if key is None else {key: float(value)})


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _is_kept(row: Row, where: Mapping[str, object]) -> bool:
    return all(_fits(row[name], wanted) for name, wanted in where.items())


def _fits(cell: str, wanted: object) -> bool:
    if isinstance(wanted, str):
        return cell == wanted
    if cell == "":
        return False
    if isinstance(wanted, list):
        least, most = cast("list[float]", wanted)
        return least <= float(cell) <= most
    return float(cell) == wanted
