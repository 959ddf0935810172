"""The traces of the recorded vLLM cases: one request a line, its prompt named token by token."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from policies.types import NS_PER_S, Arrival, Request

COLUMNS = ("id", "arrival", "prompt", "output_len")


def read_trace(path: Path) -> list[Arrival]:
    """Read ``id,arrival,prompt,output_len``: seconds, ``NAME:N|NAME:N``, tokens.

    Returns:
        The requests in the order of the file.

    Raises:
        ValueError: the file cannot be read, or a line says something impossible.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(_arrivals(path, csv.DictReader(file, strict=True)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"trace {path}: {error}; give a CSV with the columns {', '.join(COLUMNS)}") from error


def _arrivals(path: Path, lines: csv.DictReader[str]) -> Iterator[Arrival]:
    missing = [column for column in COLUMNS if column not in (lines.fieldnames or ())]
    if missing:
        raise ValueError(f"trace {path}: no column {', '.join(missing)}; the columns are {', '.join(COLUMNS)}")
    known: set[int] = set()
    for line in lines:
        try:
            arrival = _arrival(line)
            if arrival.request.request_id in known:
                raise ValueError(f"request {arrival.request.request_id} is there twice")
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"trace {path}, line {lines.line_num}: {error}; mend the line") from error
        known.add(arrival.request.request_id)
        yield arrival


def _arrival(line: dict[str, str]) -> Arrival:
    prompt = tuple(_piece(text) for text in line["prompt"].split("|"))
    arrival_ns, n_output_tokens = round(float(line["arrival"]) * NS_PER_S), int(line["output_len"])
    if arrival_ns < 0:
        raise ValueError(f"arrival {line['arrival']} s is before the start")
    request = Request(
        request_id=int(line["id"]),
        model=0,
        arrival_ns=arrival_ns,
        n_prompt_tokens=sum(n_tokens for _, n_tokens in prompt),
        max_output_tokens=n_output_tokens,
        prompt=prompt,
    )
    return Arrival(request=request, n_output_tokens=n_output_tokens)


def _piece(text: str) -> tuple[str, int]:
    name, colon, n_tokens = text.rpartition(":")
    if not colon or not name or not n_tokens.isdecimal():
        raise ValueError(f"prompt piece {text!r} is not NAME:N")
    return name, int(n_tokens)
