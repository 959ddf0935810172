"""Columns as Arrow arrays and back, by their buffers.

``pyarrow.array`` and ``to_numpy`` would do it, too, but they import pandas wherever it
is installed, which takes longer than a small run.
"""

# pyarrow comes without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from traces.results.rows import Column, label

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

ArrowTable = Any
"""A ``pyarrow.Table``."""

_Array = Any
"""A ``pyarrow.Array``."""

_Chunks = Any
"""A ``pyarrow.ChunkedArray``: a column as it is read, a chunk for each row group."""

_ABSENT = 0  # stands where there is no number; a mask says where


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels by number: ``words[code]`` for each of ``codes``, int32."""

    codes: npt.NDArray[np.int32]
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)


Values: TypeAlias = "Sequence[Any] | npt.NDArray[Any] | Labels"
"""A column's numbers, flags, documents, or labels: members of an enum, or numbered. An absent one is ``None``."""


def labels_of(members: Sequence[Enum]) -> Labels:
    """Number members of one enum in the order of its definition.

    All of its labels are among the words, so that the bytes do not depend on which came first.
    """
    kind = type(members[0]) if members else Enum
    numbers = {id(member): number for number, member in enumerate(kind)}  # the hash of a member is slow
    codes = np.fromiter(map(numbers.__getitem__, map(id, members)), np.int32, len(members))
    return Labels(codes, [label(member) for member in kind])


def integers(values: Sequence[int]) -> Ints:
    """Take Python integers as an array, faster than ``numpy.array``, which looks at each of them twice."""
    return np.fromiter(values, np.int64, len(values))


def schema_of(columns: Iterable[Column]) -> Any:
    """Give the Arrow schema of a table."""
    import pyarrow as pa

    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "label": pa.dictionary(pa.int32(), pa.string()),
        "json": pa.string(),
    }
    return pa.schema([pa.field(column.name, types[column.kind], column.nullable) for column in columns])


def table_of(columns: Sequence[Column], values: Sequence[Values]) -> ArrowTable:
    """Store a table.

    Args:
        values: of each column, of equal length.
    """
    import pyarrow as pa

    arrays = [_array(column, each) for column, each in zip(columns, values, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema_of(columns))


def values_in(column: Column, stored: _Chunks) -> npt.NDArray[Any] | list[str | None]:
    """Take a stored column: whole numbers as int64, flags, labels as strings, documents as a list.

    Where a number is absent there is some number: nothing but another column can tell.
    """
    match column.kind:
        case "int32" | "int64":
            return numbers_in(stored)
        case "bool":
            return _joined((_flags(chunk) for chunk in stored.chunks), np.bool_)
        case "label":
            words = sorted({word for chunk in stored.chunks for word in chunk.dictionary.to_pylist()})
            return np.array(words, np.str_)[codes_in(stored, words)]
        case "json":
            return stored.to_pylist()


def numbers_in(stored: _Chunks) -> Ints:
    """Take a column of whole numbers."""
    width = np.dtype(f"i{stored.type.byte_width}")
    return _joined((_viewed(chunk, width) for chunk in stored.chunks), np.int64)


def codes_in(stored: _Chunks, words: Sequence[str]) -> Ints:
    """Take a column of labels as their indices in ``words``."""
    codes = (
        np.array([words.index(word) for word in chunk.dictionary.to_pylist()], np.int64)[
            _viewed(chunk.indices, np.dtype(np.int32))
        ]
        for chunk in stored.chunks
    )
    return _joined(codes, np.int64)


def _array(column: Column, values: Values) -> _Array:
    import pyarrow as pa

    if isinstance(values, Labels):
        return pa.DictionaryArray.from_arrays(_primitive(pa.int32(), values.codes), _texts(values.words))
    cells = cast("Sequence[Any]", values)
    match column.kind:
        case "int32":
            return _primitive(pa.int32(), np.asarray(cells, np.int32))
        case "int64" if column.nullable and None in cells:
            filled = np.array([_ABSENT if cell is None else cell for cell in cells], np.int64)
            return _primitive(pa.int64(), filled, _are_present(cells))
        case "int64":
            return _primitive(pa.int64(), np.asarray(cells, np.int64))
        case "bool":
            return pa.Array.from_buffers(
                pa.bool_(), len(cells), [None, pa.py_buffer(_packed(np.array(cells, np.bool_)))]
            )
        case "label":
            return _array(column, labels_of(cells))
        case "json":
            return _texts(cells)


def _primitive(kind: Any, numbers: npt.NDArray[Any], is_present: Bools | None = None) -> _Array:
    import pyarrow as pa

    validity = None if is_present is None else pa.py_buffer(_packed(is_present))
    return pa.Array.from_buffers(kind, len(numbers), [validity, pa.py_buffer(np.ascontiguousarray(numbers))])


def _texts(values: Sequence[str | None]) -> _Array:
    import pyarrow as pa

    encoded = [b"" if value is None else value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [_packed(_are_present(values)), ends, b"".join(encoded)]
    return pa.Array.from_buffers(pa.string(), len(values), [pa.py_buffer(buffer) for buffer in buffers])


def _are_present(values: Sequence[object]) -> Bools:
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def _packed(flags: Bools) -> npt.NDArray[np.uint8]:
    return np.packbits(flags, bitorder="little")


def _viewed(chunk: _Array, stored: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(chunk.buffers()[1], stored)[chunk.offset : chunk.offset + len(chunk)]


def _flags(chunk: _Array) -> Bools:
    bits = np.unpackbits(np.frombuffer(chunk.buffers()[1], np.uint8), bitorder="little")
    return bits[chunk.offset : chunk.offset + len(chunk)].astype(np.bool_)


def _joined(pieces: Iterable[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *pieces])
