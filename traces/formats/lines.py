"""The lines of a text file, plain or gzip, one at a time, with every fault named by path and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, section 2.3.1
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_LINE_BYTES = 2**24
"""Bounds memory on input without line ends; 250,000 token ids, the longest context seen, are 2 MB."""


@dataclass(slots=True)
class Spelling:
    """How a file is written down, as far as it has been read.

    Attributes:
        n_crlf: lines that end as on Windows.
        blank_lines: numbers of the lines without anything.
        ends_with_line: the last line has an end.
    """

    is_gzip: bool = False
    has_byte_order_mark: bool = False
    n_lines: int = 0
    n_crlf: int = 0
    n_blank: int = 0
    first_blank: int | None = None
    ends_with_line: bool = True

    def note(self, line: bytes) -> None:
        """Add the next line, as it stands in the file."""
        self.n_lines += 1
        self.has_byte_order_mark |= self.n_lines == 1 and line.startswith(BYTE_ORDER_MARK)
        self.n_crlf += line.endswith(b"\r\n")
        self.ends_with_line = line.endswith(b"\n")
        if not line.strip():
            self.n_blank += 1
            self.first_blank = self.first_blank or self.n_lines


def fault(path: Path, line: int, what: str, mend: str) -> ValueError:
    """Say what is wrong in a trace file, where, and how to mend it, in one line."""
    return ValueError(f"{path}:{line}: {what}; {mend}")


def quoted(text: str) -> str:
    """The beginning of ``text`` as it may stand in a message: printable and short."""
    return repr(text[:40]) + ("..." if len(text) > 40 else "")


def numbered_lines(path: Path, spelling: Spelling | None = None) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 file line by line; gzip is told by its content, not by its name.

    Args:
        spelling: told of every line.

    Returns:
        (line number from 1, text without its line end and byte order mark).

    Raises:
        ValueError: the file cannot be read, is damaged, or is no text.
    """
    number = 0
    with opened(path, lambda: number + 1, spelling) as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            if spelling is not None:
                spelling.note(line)
            yield number, _text(path, number, line)


@contextmanager
def opened(path: Path, line: Callable[[], int], spelling: Spelling | None = None) -> Generator[BinaryIO]:
    """Open a file, plain or gzip; what the system or the unpacker refuses becomes a one-line ``ValueError``.

    Args:
        line: where reading has come to, for the message.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            if spelling is not None:
                spelling.is_gzip = is_gzip
            if is_gzip:
                with gzip.open(raw) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(path, line(), f"damaged gzip ({error})", "fetch the file again") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give the path of a readable trace file") from None


def _text(path: Path, number: int, line: bytes) -> str:
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise fault(path, number, f"a line of {MAX_LINE_BYTES} bytes or more", "give a trace file as published")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise fault(path, number, f"not UTF-8 text (byte {error.start})", "give a trace file as published") from None
    return text.removesuffix("\n").removesuffix("\r")
