"""The answer on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conf.planning import words
from conf.planning.answer import Answer


def screen(answer: Answer) -> str:
    """Write the answer, the verdict first."""
    lines = [
        words.what(answer),
        words.requests(answer),
        f"Promise: {answer.asked.slo.label}",
        "",
        words.verdict(answer),
        *words.cost(answer),
        words.link(answer),
        words.binds(answer),
        words.wanted(answer),
        *words.oddities(answer),
        "",
        *table(words.RATE_HEADS, words.rate_rows(answer)),
        "",
        f"At the rates that {answer.reference.name} keeps:",
        *table(words.COST_HEADS, words.cost_rows(answer)),
        "",
        *table(words.MODEL_HEADS, map(words.model_cells, answer.models)),
    ]
    return "\n".join(line for index, line in enumerate(lines) if line or (index and lines[index - 1]))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Align rows: the first column to the left, the others to the right; a column without a word is left out."""
    kept, told = filled(heads, rows)
    cells = [kept, *told]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if nth else cell.ljust(width)
            for nth, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def filled(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[Sequence[str], list[list[str]]]:
    """Leave out columns without a word, but for the first."""
    cells = [list(row) for row in rows]
    kept = [index for index in range(len(heads)) if not index or any(row[index] for row in cells)]
    return [heads[index] for index in kept], [[row[index] for index in kept] for row in cells]
