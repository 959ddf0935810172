"""The lines of a text file, plain or gzip, one at a time, with every fault named by path and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, section 2.3.1

MAX_LINE_BYTES = 2**20
"""Bounds memory on input without line ends; the published traces stay below 10 kB a line."""


def fault(path: Path, line: int, what: str, mend: str) -> ValueError:
    """Say what is wrong in a trace file, where, and how to mend it, in one line."""
    return ValueError(f"{path}:{line}: {what}; {mend}")


def quoted(text: str) -> str:
    """The beginning of ``text`` as it may stand in a message: printable and short."""
    return repr(text[:40]) + ("..." if len(text) > 40 else "")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file line by line; gzip is told by its content, not by its name.

    Returns:
        (line number from 1, text without its line end and byte order mark).

    Raises:
        ValueError: the file cannot be read, is damaged, or is no text.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                number += 1
                yield number, _text(path, number, line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(path, number + 1, f"damaged gzip ({error})", "fetch the file again") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give the path of a readable trace file") from None


@contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    with path.open("rb") as raw:
        if raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            with gzip.open(raw) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield raw


def _text(path: Path, number: int, line: bytes) -> str:
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise fault(path, number, f"a line of {MAX_LINE_BYTES} bytes or more", "give a trace file as published")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise fault(path, number, f"not UTF-8 text (byte {error.start})", "give a trace file as published") from None
    return text.removesuffix("\n").removesuffix("\r")
