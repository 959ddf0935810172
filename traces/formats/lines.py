"""The lines of a text file, plain or gzip, one at a time, with every fault named by path and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, cast

GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952, section 2.3.1
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

OTHERS = {
    GZIP_MAGIC: ("gzip within gzip", "unpack it once"),
    b"PK\x03\x04": ("a ZIP archive", "unpack it"),
    b"PAR1": ("a Parquet file", "write it as CSV or JSON lines"),
    b"BZh": ("packed by bzip2", "unpack it, or pack it by gzip"),
    b"\xfd7zXZ\x00": ("packed by xz", "unpack it, or pack it by gzip"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "unpack it, or pack it by gzip"),
    b"\xff\xfe": ("text in UTF-16 or UTF-32", "save it as UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "save it as UTF-8"),
}
"""How files begin that cannot be read, what they are, and the mend.

Source: APPNOTE.TXT 4.3.7 (ZIP), parquet.apache.org/docs/file-format, bzip2's manual, the .xz file format 2.1.1.1,
RFC 8878 section 3.1.1 (zstd), Unicode 15 section 23.8 (byte order mark).
"""

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
        kind = path.stat().st_mode
        if not (S_ISREG(kind) or S_ISDIR(kind)):  # opening a pipe waits for who writes, and it cannot be read twice
            raise ValueError(f"{path}: a pipe or a device, no file; write it to a file first")
        with path.open("rb") as raw:
            is_gzip = raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
            if spelling is not None:
                spelling.is_gzip = is_gzip
            if is_gzip:
                with gzip.open(raw) as unpacked:
                    _refuse_others(path, unpacked.peek(1))
                    yield cast(BinaryIO, unpacked)
            else:
                _refuse_others(path, raw.peek(1))
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(path, line(), f"damaged gzip ({error})", "fetch the file again") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give the path of a readable trace file") from None


def _refuse_others(path: Path, head: bytes) -> None:
    for magic, (what, mend) in OTHERS.items():
        if head.startswith(magic):
            raise fault(path, 1, what, mend)


def _text(path: Path, number: int, line: bytes) -> str:
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise fault(path, number, f"a line of {MAX_LINE_BYTES} bytes or more", "give a trace file as published")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise fault(path, number, f"not UTF-8 text (byte {error.start})", "give a trace file as published") from None
    return text.removesuffix("\n").removesuffix("\r")
