"""A run as a folder: ``run.json`` and five tables.

::

    run.json      what ran (see ``RunInfo``), on which code, from when to when, and how it ended
    requests.parquet  steps.parquet  decisions.parquet  memory.parquet  gaps.parquet
    summary.json  the figures of metrics.py, if they were asked for

``state`` in run.json is "running" until the end, then "complete", or "incomplete" with
the reason. A folder that says "running" although nothing runs belongs to a run that died;
its tables are read from the parts that it left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from traces.results.arrays import values_in
from traces.results.gaps import combined
from traces.results.grid import Grid, Scalar, named, of_system, of_workload
from traces.results.rows import ROW_TYPES, TableName, columns_of
from traces.results.tables import Combine, read_table, stored, stored_columns

if TYPE_CHECKING:
    from traces.results.tables import Columns, Frame

SCHEMA_VERSION = 1
"""Of run.json and the tables; raised when a reader of the old ones would misread the new."""

State = Literal["running", "complete", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a reader needs to know of a model, which the tables name by its index."""

    name: str
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What ran.

    Attributes:
        system: policy or variant, as tables and figures call it.
        mix: models and their shares, by name.
        lengths: distribution of prompt and output lengths, by name.
        rate_per_s: mean arrival rate in requests/s; ``None`` if the trace has its own.
        seed: of every random stream.
        models: in the order in which the tables count them.
        hbm_bytes: size of the device; ``None`` if unknown.
        device: what computed, in words; for a simulation the hardware that was modelled.
        config: the resolved configuration, as JSON can hold it.
        grid: in what it differs from other runs of its system beside it: see ``traces/results/grid.py``.
    """

    system: str
    mix: str
    lengths: str
    rate_per_s: float | None
    seed: int
    models: tuple[ModelInfo, ...]
    hbm_bytes: int | None = None
    device: str = ""
    config: Mapping[str, object] = field(default_factory=dict[str, object])
    grid: Grid = field(default_factory=dict[str, Scalar])

    @property
    def label(self) -> str:
        """The system, with those of its settings that tell it from others of its name."""
        return named(self.system, of_system(self.grid))

    @property
    def workload(self) -> str:
        """The lengths, with all that tells their workload from others."""
        return named(self.lengths, of_workload(self.grid))

    @property
    def rate(self) -> str:
        """The arrival rate in words."""
        return "the trace's own rate" if self.rate_per_s is None else f"{self.rate_per_s:g} requests/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """A run in its folder; a table is read each time it is asked for.

    Attributes:
        reason: why it is incomplete.
        kept: the names of its tables.
    """

    folder: Path
    info: RunInfo
    state: State
    reason: str | None
    kept: tuple[TableName, ...]

    @property
    def requests(self) -> Frame:
        """One row a request, for pandas."""
        return self._frame("requests")

    @property
    def gaps(self) -> Frame:
        """The histogram of the gaps between tokens, for pandas."""
        return self._frame("gaps")

    @property
    def steps(self) -> Frame | None:
        """One row a step, for pandas; ``None`` if the table was not kept."""
        return self._frame("steps") if "steps" in self.kept else None

    @property
    def decisions(self) -> Frame | None:
        """One row a question to the policy, for pandas; ``None`` if the table was not kept."""
        return self._frame("decisions") if "decisions" in self.kept else None

    @property
    def memory(self) -> Frame | None:
        """Who holds HBM, a row each time that changes, for pandas; ``None`` if the table was not kept."""
        return self._frame("memory") if "memory" in self.kept else None

    def columns(self, name: TableName, only: Sequence[str]) -> Columns:
        """Read some columns of a table, numbers or labels, without pandas."""
        pieces = list(self.pieces(name, only))
        return {column: np.concatenate([piece[column] for piece in pieces]) for column in only}

    def pieces(self, name: TableName, only: Sequence[str]) -> Iterator[Columns]:
        """Read some columns of a table in one piece or more, so that they need not fit in memory, without pandas."""
        row_type = ROW_TYPES[name]
        of = {column.name: column for column in columns_of(row_type)}
        for piece in stored(self.folder, name, row_type, only=only, combine=_combine(name)):
            yield {column: values_in(of[column], piece[column]) for column in only}

    def has(self, name: TableName, column: str) -> bool:
        """Whether a table was kept with that column; runs that older code made lack the newest."""
        return name in self.kept and column in stored_columns(self.folder, name)

    def _frame(self, name: TableName) -> Frame:
        return read_table(self.folder, name, ROW_TYPES[name], combine=_combine(name))


def read_run(folder: Path) -> RunTables:
    """Find a run in its folder; of one that died, what it left.

    Raises:
        ValueError: the folder holds no run, or one of another schema version.
    """
    header = _read_header(folder)
    return RunTables(
        folder=folder,
        info=_info_from(header),
        state=header["state"],
        reason=header["reason"],
        kept=tuple(header["tables"]),
    )


def read_info(folder: Path) -> RunInfo:
    """Read what ran.

    Raises:
        ValueError: the folder holds no run, or one of another schema version.
    """
    return _info_from(_read_header(folder))


def is_complete(folder: Path) -> bool:
    """Tell whether the folder holds a run that went to its end."""
    try:
        return _read_header(folder)["state"] == "complete"
    except ValueError:
        return False


def discard(folder: Path) -> None:
    """Remove what a run that did not end well has left."""
    for pattern in ("*.json", "*.json.gz", "*.parquet", "*.unfinished"):
        for path in folder.glob(pattern):
            path.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """Read one of a run's documents.

    Raises:
        ValueError: it is not there or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: {error}; name the folder of a run{_such_as(path.parent)}") from error


def _such_as(folder: Path) -> str:
    """Name one of the runs below a folder that is none itself, such as an experiment's."""
    found = min((each.parent for each in folder.glob("*/run.json")), default=None)
    return "" if found is None else f", such as {found}"


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a document so that a reader sees the old one or the new one, never a part."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _combine(name: TableName) -> Combine | None:
    return combined if name == "gaps" else None


def _info_from(header: Mapping[str, Any]) -> RunInfo:
    given = {item.name: header[item.name] for item in fields(RunInfo) if item.name in header}
    given["models"] = tuple(ModelInfo(**model) for model in header["models"])
    return RunInfo(**given)


def _read_header(folder: Path) -> dict[str, Any]:
    header = read_json(folder / "run.json")
    if header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{folder}: results of schema version {header.get('schema_version')}, this code reads {SCHEMA_VERSION}; "
            "run it again or read it with the commit in its run.json"
        )
    return header
