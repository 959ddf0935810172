"""Rows on their way to Parquet and back: kept as columns, written in parts, merged at the end.

A Parquet file cannot be read before its end is written, so a table is a series of small
complete files until the run ends. What a run that dies leaves is read from those.
The same rows give the same bytes: nothing that changes from run to run is in a file.
"""

# pyarrow and pandas come without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from traces.rows import Column, columns_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    Frame = pd.DataFrame

ArrowTable = Any
"""A ``pyarrow.Table``."""

Row = TypeVar("Row")


class TableWriter(Generic[Row]):
    """Collects the rows of one table and writes them to ``folder``.

    Args:
        folder: exists; the parts and at last ``name.parquet`` are written here.
        name: name of the table.
        row_type: the dataclass that is its schema.
        rows_per_part: a part file is closed once this many rows are waiting.
        combine: what the merge applies to the whole table; ``None`` copies it part by part.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        row_type: type[Row],
        *,
        rows_per_part: int,
        combine: Callable[[ArrowTable], ArrowTable] | None = None,
    ) -> None:
        self._folder = folder
        self._name = name
        self._columns = columns_of(row_type)
        self._values_of = attrgetter(*(column.name for column in self._columns))
        self._rows_per_part = rows_per_part
        self._combine = combine
        self._n_parts = 0
        self._pending = [_buffer(column) for column in self._columns]

    def append(self, row: Row) -> None:
        """Add one row."""
        for values, value in zip(self._pending, self._values_of(row), strict=True):
            values.append(value)
        self._write_if_full()

    def extend(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Add rows given as columns of equal length, one for each field."""
        for column, values in zip(self._columns, self._pending, strict=True):
            values.extend(rows[column.name])
        self._write_if_full()

    def close(self) -> None:
        """Write what is left and merge the parts into one file."""
        import pyarrow.parquet as pq

        if self._pending[0]:
            self._write_part()
        parts = _parts(self._folder, self._name)
        merged = self._folder / f"{self._name}.parquet"
        unfinished = merged.with_suffix(".unfinished")
        with pq.ParquetWriter(unfinished, _schema(self._columns), **_FORMAT) as writer:
            if self._combine is None:
                for part in parts:
                    writer.write_table(pq.read_table(part))
            else:
                writer.write_table(self._combine(_concatenated(parts, self._columns)))
        unfinished.replace(merged)
        for part in parts:
            part.unlink()

    def _write_if_full(self) -> None:
        while len(self._pending[0]) >= self._rows_per_part:
            self._write_part()

    def _write_part(self) -> None:
        """Write the next part, always of the same size, so that the bytes do not depend on how rows came."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        n = self._rows_per_part
        ready = [values[:n] for values in self._pending]
        self._pending = [values[n:] for values in self._pending]
        schema = _schema(self._columns)
        stored = [
            pa.array(np.frombuffer(values, values.typecode) if isinstance(values, array) else values, field.type)
            for values, field in zip(ready, schema, strict=True)
        ]
        part = self._folder / f"{self._name}.part{self._n_parts:05}.parquet"
        unfinished = part.with_suffix(".unfinished")
        pq.write_table(pa.Table.from_arrays(stored, schema=schema), unfinished, **_FORMAT)
        unfinished.replace(part)
        self._n_parts += 1


def read_table(
    folder: Path,
    name: str,
    row_type: type,
    *,
    combine: Callable[[ArrowTable], ArrowTable] | None = None,
) -> Frame:
    """Read a table into pandas, from its parts if it was never merged.

    Labels become categories; columns of a table with absent numbers are pandas' nullable integers.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = columns_of(row_type)
    merged = folder / f"{name}.parquet"
    if merged.exists():
        table = pq.read_table(merged)
    else:
        table = _concatenated(_parts(folder, name), columns)
        table = table if combine is None else combine(table)
    has_absent_numbers = any(column.nullable and column.kind == "int64" for column in columns)
    nullable = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()} if has_absent_numbers else {}
    labels = [column.name for column in columns if column.kind == "label"]
    return table.to_pandas(categories=labels, types_mapper=nullable.get)


def ints(frame: Frame, column: str) -> npt.NDArray[np.int64]:
    """Take a column of whole numbers, none of them absent."""
    return frame[column].to_numpy(np.int64)


def texts(frame: Frame, column: str) -> list[str]:
    """Take a column of labels or documents, none of them absent."""
    return frame[column].astype(object).tolist()


def where(frame: Frame, column: str, allowed: Collection[object]) -> Frame:
    """Take the rows whose value is one of the allowed."""
    return frame.loc[frame[column].isin(list(allowed))]


def above(frame: Frame, column: str, bound: int) -> Frame:
    """Take the rows whose value is larger than the bound."""
    return frame.loc[frame[column] > bound]


def present(frame: Frame, column: str) -> Frame:
    """Take the rows that have a value in this column."""
    return frame.loc[frame[column].notna()]


# Parquet's own types say all about these columns, so Arrow's schema is left out.
_FORMAT: dict[str, Any] = {"compression": "zstd", "store_schema": False}


def _buffer(column: Column) -> array[int] | list[Any]:
    typecodes = {"int32": "i", "int64": "q"}
    return array(typecodes[column.kind]) if column.kind in typecodes and not column.nullable else []


def _schema(columns: Sequence[Column]) -> Any:
    import pyarrow as pa

    types = {"int32": pa.int32(), "int64": pa.int64(), "bool": pa.bool_(), "label": pa.string(), "json": pa.string()}
    return pa.schema([pa.field(column.name, types[column.kind], column.nullable) for column in columns])


def _parts(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}.part*.parquet"))


def _concatenated(parts: Sequence[Path], columns: Sequence[Column]) -> ArrowTable:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(columns)
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(part) for part in parts)])
