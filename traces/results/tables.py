"""Rows on their way to Parquet and back: written in parts, beside which the whole file grows.

A Parquet file cannot be read before its end is written, so a table is a series of small
complete files until the run ends. What a run that dies leaves is read from those.
The same rows give the same bytes: nothing that changes from run to run is in a file.
"""

# pyarrow and pandas come without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.results.arrays import ArrowTable, schema_of, table_of
from traces.results.rows import Column, columns_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from traces.results.arrays import Values

    Frame = pd.DataFrame

Columns = Mapping[str, Any]
"""A table by the names of its columns: numpy arrays, or lists of documents (see ``arrays.values_in``)."""

Combine = Callable[[ArrowTable], ArrowTable]
"""What makes one table of all the rows of a table; it may be applied again to what it gave."""


class TableWriter:
    """Writes the rows of one table to ``folder``.

    Args:
        folder: exists; the parts and at last ``name.parquet`` are written here.
        name: name of the table.
        row_type: the dataclass that is its schema.
        rows_per_part: a part file is closed once this many rows are waiting.
        combine: what is applied to the whole table at its end; ``None`` leaves the rows as they came.
    """

    def __init__(
        self, folder: Path, name: str, row_type: type, *, rows_per_part: int, combine: Combine | None = None
    ) -> None:
        self._folder = folder
        self._name = name
        self._columns = columns_of(row_type)
        self._rows_per_part = rows_per_part
        self._combine = combine
        self._n_parts = 0
        self._waiting: list[ArrowTable] = []
        self._n_waiting = 0
        self._whole: Any = None  # a ParquetWriter

    def extend(self, columns: Sequence[Values]) -> None:
        """Add rows, given as columns of equal length in the order of the fields."""
        rows = table_of(self._columns, columns)
        self._waiting.append(rows)
        self._n_waiting += len(rows)
        while self._n_waiting >= self._rows_per_part:
            self._write_part(self._taken(self._rows_per_part))

    def close(self) -> None:
        """Write what is left, and leave one file."""
        rest = self._taken(self._n_waiting)
        if self._combine is not None:
            rest = self._combine(_joined([_read(_parts(self._folder, self._name), self._columns), rest], self._columns))
        if len(rest) or self._whole is None:
            self._append(rest)
        assert self._whole is not None
        self._whole.close()
        merged = self._folder / f"{self._name}.parquet"
        merged.with_suffix(".unfinished").replace(merged)
        for part in _parts(self._folder, self._name):
            part.unlink()

    def _taken(self, n_rows: int) -> ArrowTable:
        """Take the first of the rows that wait: always as many, so that the bytes do not depend on how rows came."""
        waiting = _joined(self._waiting, self._columns)
        self._waiting = [waiting.slice(n_rows)]
        self._n_waiting -= n_rows
        return waiting.slice(0, n_rows).combine_chunks()

    def _write_part(self, rows: ArrowTable) -> None:
        import pyarrow.parquet as pq

        part = self._folder / f"{self._name}.part{self._n_parts:05}.parquet"
        unfinished = part.with_suffix(".unfinished")
        pq.write_table(rows, unfinished, **_format(self._columns))
        unfinished.replace(part)
        self._n_parts += 1
        if self._combine is None:
            self._append(rows)

    def _append(self, rows: ArrowTable) -> None:
        """Add a row group to the whole file, which has no end before ``close``."""
        import pyarrow.parquet as pq

        if self._whole is None:
            unfinished = self._folder / f"{self._name}.unfinished"
            self._whole = pq.ParquetWriter(unfinished, schema_of(self._columns), **_format(self._columns))
        self._whole.write_table(rows)


def stored(
    folder: Path, name: str, row_type: type, *, only: Sequence[str] | None = None, combine: Combine | None = None
) -> Iterator[ArrowTable]:
    """Read a table row group by row group, from its parts if it has no end; what is to be combined comes in one.

    Args:
        only: names of the columns to read; ``None`` for all.
    """
    columns = columns_of(row_type)
    wanted = [column.name for column in columns] if only is None else only
    whole = folder / f"{name}.parquet"
    is_whole = whole.exists()
    if combine is not None and not is_whole:
        yield combine(_read(_parts(folder, name), columns)).select(wanted)
        return
    yield _joined([], columns).select(wanted)  # so that there is a piece
    for path in [whole] if is_whole else _parts(folder, name):
        with _opened(path, columns) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, wanted)


def read_table(folder: Path, name: str, row_type: type, *, combine: Combine | None = None) -> Frame:
    """Read a table into pandas, from its parts if it has no end.

    Labels become categories; columns of a table with absent numbers are pandas' nullable integers.
    """
    import pandas as pd
    import pyarrow as pa

    columns = columns_of(row_type)
    table = _joined(stored(folder, name, row_type, combine=combine), columns).unify_dictionaries()
    has_absent_numbers = any(column.nullable and column.kind == "int64" for column in columns)
    nullable = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()} if has_absent_numbers else {}
    return table.to_pandas(types_mapper=nullable.get)


def stored_columns(folder: Path, name: str) -> set[str]:
    """The names of the columns that a table has in its files."""
    whole, names = folder / f"{name}.parquet", set[str]()
    for path in [whole] if whole.exists() else _parts(folder, name):
        with _opened(path, ()) as file:
            names.update(file.schema_arrow.names)
    return names


def ints(frame: Frame, column: str) -> npt.NDArray[np.int64]:
    """Take a column of whole numbers, none of them absent."""
    return frame[column].to_numpy(np.int64)


def texts(frame: Frame, column: str) -> list[str]:
    """Take a column of labels or documents, none of them absent."""
    return frame[column].astype(object).tolist()


def where(frame: Frame, column: str, allowed: Collection[object]) -> Frame:
    """Take the rows whose value is one of the allowed."""
    return frame.loc[frame[column].isin(list(allowed))]


def present(frame: Frame, column: str) -> Frame:
    """Take the rows that have a value in this column."""
    return frame.loc[frame[column].notna()]


def _format(columns: Sequence[Column]) -> dict[str, Any]:
    """How columns are stored: docs/performance.md has what each choice costs.

    Whole numbers as differences, which suits points in time and takes a quarter of the time
    of dictionaries of mostly different values. Parquet's own types say all about these
    columns, so Arrow's schema is left out.
    """
    numbers = [column.name for column in columns if column.kind in ("int32", "int64")]
    return {
        "store_schema": False,
        "use_dictionary": [column.name for column in columns if column.kind == "label"],
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "compression": {column.name: "zstd" if column.kind == "json" else "snappy" for column in columns},
    }


def _parts(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}.part*.parquet"))


def _opened(path: Path, columns: Sequence[Column]) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, read_dictionary=[column.name for column in columns if column.kind == "label"])


def _read(files: Sequence[Path], columns: Sequence[Column]) -> ArrowTable:
    read: list[ArrowTable] = []
    for path in files:
        with _opened(path, columns) as file:
            read.append(file.read())
    return _joined(read, columns)


def _joined(tables: Iterable[ArrowTable], columns: Sequence[Column]) -> ArrowTable:
    import pyarrow as pa

    no_rows = table_of(columns, [()] * len(columns))
    return pa.concat_tables([no_rows, *tables], promote_options="default")  # older runs lack the newest columns
