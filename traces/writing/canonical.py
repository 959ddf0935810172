"""The one form of a trace that this package writes: CSV or JSON lines, plain or gzip, complete or not there at all."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, TextIO

from traces.formats import Pieces

COLUMNS = ("arrival_ns", "n_prompt_tokens", "n_output_tokens", "session", "think_ns", "prompt")
ENDINGS = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz")


class Line(NamedTuple):
    """A request as it is written; see ``traces.formats.TraceRow``. ``None`` is left empty."""

    arrival_ns: int | None
    n_prompt_tokens: int
    n_output_tokens: int
    session: str | None = None
    think_ns: int | None = None
    prompt: Pieces | None = None


Put = Callable[[Line], None]


def require_writable(out: Path, *, is_forced: bool, other_than: Path | None = None) -> None:
    """Refuse a file that cannot be written as it is asked for.

    Raises:
        ValueError: its name has no known ending, it is there, or it is what is read.
    """
    if not out.name.endswith(ENDINGS):
        raise ValueError(f"{out} ends in none of {', '.join(ENDINGS)}; name the form by the ending")
    if other_than is not None and out.exists() and out.samefile(other_than):
        raise ValueError(f"{out} is the file that is read; name another")
    if out.exists() and not is_forced:
        raise ValueError(f"{out} is there; name another, or give --force")


def write(out: Path, lines: Iterable[Line]) -> int:
    """Write a trace; returns how many requests it has.

    Raises:
        ValueError: the file cannot be written, or a session's name does not go into a CSV.
    """
    n_lines = 0
    with _replacing(out) as text:
        put = _csv_writer(text) if ".csv" in out.suffixes else _json_writer(text)
        for line in lines:
            put(line)
            n_lines += 1
    return n_lines


def _csv_writer(text: TextIO) -> Put:
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)

    def put(line: Line) -> None:
        if line.session is not None and not line.session.isprintable():
            raise ValueError(f"session {line.session!r} does not go into a CSV; write .jsonl")
        writer.writerow((*line[:-1], _written(line.prompt)))

    return put


def _json_writer(text: TextIO) -> Put:
    def put(line: Line) -> None:
        fields = {**line._asdict(), "prompt": _written(line.prompt)}
        text.write(json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n")

    return put


def _written(prompt: Pieces | None) -> str | None:
    return None if prompt is None else "|".join(f"{stream}:{n}" for stream, n in prompt)


@contextmanager
def _replacing(out: Path) -> Generator[TextIO]:
    """Open a file that takes its name when all is written."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("xb") as raw, _packed(out, raw) as text:
                yield text
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}; choose another place") from None


@contextmanager
def _packed(out: Path, raw: IO[bytes]) -> Generator[TextIO]:
    if out.suffix == ".gz":
        # Without name and time: the same trace gives the same bytes.
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            io.TextIOWrapper(packed, "utf-8", newline="") as text,
        ):
            yield text
    else:
        text = io.TextIOWrapper(raw, "utf-8", newline="")
        yield text
        text.flush()
        text.detach()
