"""The records of a file: lines of a CSV, JSON lines, or the elements of one JSON array, a few at a time in memory."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Literal, cast

from traces.formats.lines import BYTE_ORDER_MARK, MAX_LINE_BYTES, Spelling, fault, numbered_lines, opened, quoted
from traces.formats.values import is_value

Container = Literal["csv", "jsonl", "json"]

Record = Mapping[str, object]
"""A CSV's fields by column (strings), or a JSON object; numbers with a fraction are exact ``Decimal``."""

OnFault = Callable[[int, str], None]
"""Told (where, what) of a record that is skipped."""


def ignored(where: int, what: str) -> None:
    """Take note of no fault."""
    del where, what


CHUNK_BYTES = 2**16
BLANK = " \t\r\n"
SEPARATORS = (",", ";", "\t", "|")


def container_of(path: Path) -> Container:
    """Tell how a file is divided into records, from its first character that is not blank.

    Raises:
        ValueError: there is none, or the file cannot be read.
    """
    with opened(path, lambda: 1) as stream:  # not by lines: an array may be a single one of gigabytes
        while head := stream.readline(CHUNK_BYTES):
            if text := head.removeprefix(BYTE_ORDER_MARK).lstrip():
                return {b"[": "json", b"{": "jsonl"}.get(text[:1], "csv")  # pyright: ignore[reportReturnType]
    raise fault(path, 1, "the file is empty", "give a trace with requests")


HEADLESS = "values, where the names of the columns should be", "put a header in front, as the published traces have"


def columns_of(path: Path) -> list[str]:
    """Read the header of a CSV. A column without a name is called after its place.

    Raises:
        ValueError: it is no header, or a column is there twice.
    """
    number, line = next(((number, line) for number, line in numbered_lines(path) if line.strip()), (1, ""))
    if "\0" in line:
        raise fault(path, number, "zero bytes: no text, or text in UTF-16", "save it as UTF-8")
    if "\r" in line:
        raise fault(path, number, "lines that end with CR alone", "end them with LF")
    try:
        names = [column.strip() for column in _fields(line, _separator(line))]
    except csv.Error as error:
        raise fault(path, number, f"the header is no CSV ({error})", "give a trace as published") from None
    columns = [name or f"column {place}" for place, name in enumerate(names, 1)]
    if len(set(columns)) != len(columns):
        if any(map(is_value, columns)):
            raise fault(path, number, *HEADLESS)
        raise fault(path, number, "a column is there twice", "keep one of each name")
    return columns


def records(
    path: Path, container: Container, on_fault: OnFault | None = None, spelling: Spelling | None = None
) -> Iterator[tuple[int, Record]]:
    """Read (line, or element of an array, from 1; record), one after another.

    Args:
        on_fault: told of records that are none, which are left out; without it the first stops the reading.

    Raises:
        ValueError: the file cannot be read, or a record is none.
    """
    match container:
        case "csv":
            return _rows(path, on_fault, spelling)
        case "jsonl":
            return _objects(path, on_fault, spelling)
        case "json":
            return _elements(path, on_fault, spelling)


def _rows(path: Path, on_fault: OnFault | None, spelling: Spelling | None) -> Iterator[tuple[int, Record]]:
    columns: Sequence[str] | None = None
    separator = ","
    for number, line in numbered_lines(path, spelling):
        if not line.strip():
            continue
        if columns is None:
            columns, separator = columns_of(path), _separator(line)
            continue
        try:
            fields = _fields(line, separator)
        except csv.Error as error:
            _tell(path, "csv", number, f"no CSV ({error})", on_fault)
            continue
        if len(fields) == len(columns):
            yield number, dict(zip(columns, fields, strict=True))
        else:
            _tell(path, "csv", number, f"{len(fields)} fields, not {len(columns)}", on_fault)


def _separator(header: str) -> str:
    return max(SEPARATORS, key=header.count)  # the comma if there is none


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator, strict=True)) if '"' in line else line.split(separator)


def _objects(path: Path, on_fault: OnFault | None, spelling: Spelling | None) -> Iterator[tuple[int, Record]]:
    decoder = _decoder()
    for number, line in numbered_lines(path, spelling):
        if not line.strip():
            continue
        try:
            value = decoder.decode(line)
        except _NO_JSON as error:
            _tell(path, "jsonl", number, _not_json(error, line), on_fault)
            continue
        if isinstance(value, dict):
            yield number, cast(Record, value)
        else:
            _tell(path, "jsonl", number, f"{quoted(line)} is no JSON object", on_fault)


class _TwiceError(Exception):
    """An object has a key twice."""


_NO_JSON = (ValueError, RecursionError, ArithmeticError, _TwiceError)


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, object]]) -> Record:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _TwiceError(f"{quoted(twice)} is there twice")
    return made


def _not_json(error: Exception, text: str) -> str:
    if isinstance(error, _TwiceError):
        return str(error)
    if not isinstance(error, json.JSONDecodeError):
        return "no JSON (a number out of range, or nested too deep)"
    near = text[max(0, error.pos - 15) : error.pos + 10]
    return f"no JSON ({error.msg} at character {error.pos + 1}, near {quoted(near)})"


def _elements(path: Path, on_fault: OnFault | None, spelling: Spelling | None) -> Iterator[tuple[int, Record]]:
    """The objects of one array, however its lines are broken; at most the bytes of one and a piece are held."""
    decoder = _decoder()
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    number, held, has_begun = 0, "", False
    with opened(path, lambda: 1, spelling) as stream:
        is_last = False
        while True:
            if not has_begun:
                held = held.lstrip(BLANK)
                has_begun, held = bool(held), held[1:]  # the bracket
            held = held.lstrip("," + BLANK)
            if held.startswith("]"):
                if held[1:].strip(BLANK) or not _is_blank(stream):
                    raise fault(path, number + 1, "something follows the array", "give one array, or an object a line")
                return
            try:
                value, end = decoder.raw_decode(held) if held else (None, 0)
                is_whole = end > 0 and (is_last or end < len(held))
            except _TwiceError as error:
                raise row_fault(path, "json", number + 1, str(error)) from None
            except _NO_JSON:
                is_whole, value, end = False, None, 0
            if is_whole:
                number += 1
                held = held[end:]
                if isinstance(value, dict):
                    yield number, cast(Record, value)
                else:
                    _tell(path, "json", number, "an element that is no object", on_fault)
                continue
            if is_last or len(held) > MAX_LINE_BYTES:
                what = f"the array breaks off or is no JSON behind element {number}, near {quoted(held)}"
                raise fault(path, number + 1, what, "give the file as published")
            piece = stream.read(max(CHUNK_BYTES, len(held)))  # doubling keeps the work linear
            is_last = not piece
            if spelling is not None:
                spelling.has_byte_order_mark |= piece.startswith(BYTE_ORDER_MARK)
            try:
                held += utf8.decode(piece, final=is_last)
            except UnicodeDecodeError:
                raise fault(path, number + 1, "not UTF-8 text", "give the file as published") from None


def _is_blank(stream: BinaryIO) -> bool:
    while piece := stream.read(CHUNK_BYTES):
        if piece.strip():
            return False
    return True


def row_fault(path: Path, container: Container, number: int, what: str) -> ValueError:
    """Say what is wrong with a record; see ``fault``."""
    if container == "json":
        return ValueError(f"{path}: element {number}: {what}; correct or remove it")
    return fault(path, number, what, "correct or remove the row")


def _tell(path: Path, container: Container, number: int, what: str, on_fault: OnFault | None) -> None:
    if on_fault is None:
        raise row_fault(path, container, number, what)
    on_fault(number, what)
