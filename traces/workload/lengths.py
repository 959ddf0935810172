"""How long prompts and outputs are: tables of data sets, a constant, the rows of a file, or the trace's own rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import repeat
from math import erf, pi, sin, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from traces.workload.dataset import drawn_pairs, load_pairs
from traces.workload.settings import refuse_unused, require_choice

BLOCK = 1024
"""Pairs drawn at once: speed only."""

USES = {
    "table": ("table", "spearman"),
    "constant": ("n_prompt_tokens", "n_output_tokens"),
    "rows": ("path",),
    "file": (),
}
"""Settings that each kind reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """Which lengths.

    Attributes:
        kind: ``table``, ``constant``, ``rows``: drawn from the rows of a file, or ``file``: the row of the trace that
            the arrival comes from.
        table: a data set in ``traces/fits/lengths.json``.
        spearman: rank correlation of prompt and output in (-1, 1); 0 draws them independently.
        n_prompt_tokens, n_output_tokens: of ``constant``, at least 1.
        path: of ``rows``: a file of any format in ``traces/formats``; it needs no times.

    Raises:
        ValueError: a choice is unknown, a number out of range, a setting without effect or missing.
    """

    kind: str
    table: str | None = None
    spearman: float = 0.0
    n_prompt_tokens: int | None = None
    n_output_tokens: int | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        require_choice("lengths.kind", self.kind, USES)
        refuse_unused("lengths", self, "kind", USES[self.kind])
        if not -1 < self.spearman < 1:
            raise ValueError(f"lengths.spearman={self.spearman} is outside (-1, 1)")
        if self.kind == "table" and self.table is None:
            raise ValueError("lengths.kind=table needs lengths.table; set it")
        if self.kind == "rows" and self.path is None:
            raise ValueError("lengths.kind=rows needs lengths.path; set it")
        if self.kind == "constant":
            for name in USES["constant"]:
                if (getattr(self, name) or 0) < 1:
                    raise ValueError(f"lengths.{name}={getattr(self, name)} tokens must be at least 1")

    @property
    def label(self) -> str:
        """What they are, for a person."""
        if self.kind == "table":
            return f"lengths of {self.table}"
        if self.kind == "constant":
            return f"{self.n_prompt_tokens} prompt and {self.n_output_tokens} output tokens"
        if self.path is not None:
            return f"lengths drawn from {Path(self.path).name}"
        return "lengths of the trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileTable:
    """A distribution of token counts as quantiles, linear in between.

    Attributes:
        percent: increasing from 0 to 100, (n_points,).
        tokens: nondecreasing, at least 1, (n_points,).

    Raises:
        ValueError: the points are no distribution.
    """

    percent: Sequence[float]
    tokens: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.percent) != len(self.tokens) or (self.percent[0], self.percent[-1]) != (0, 100):
            raise ValueError(f"{len(self.percent)} percentages from 0 to 100 need as many token counts")
        if sorted(set(self.percent)) != list(self.percent) or sorted(self.tokens) != list(self.tokens):
            raise ValueError("a quantile table must not decrease")
        if self.tokens[0] < 1:
            raise ValueError(f"a quantile table starts at {self.tokens[0]} tokens, below 1")

    @property
    def mean_tokens(self) -> float:
        """Mean of the piecewise linear inverse CDF."""
        return float(np.trapezoid(self.tokens, self.percent)) / 100

    def at(self, shares: np.ndarray) -> list[int]:
        """Token counts at these shares in 0..1: linear inverse CDF, rounded; never outside the table."""
        tokens: list[int] = np.rint(np.interp(100 * shares, self.percent, self.tokens)).astype(np.int64).tolist()
        return tokens


def length_tables() -> list[str]:
    """The names of the data sets that come with this package."""
    return list(_published()["tables"])


def load_tables(name: str) -> tuple[QuantileTable, QuantileTable]:
    """Load the tables of prompt and output tokens of a data set.

    Raises:
        ValueError: there is no data set of that name.
    """
    known = _published()
    require_choice("lengths.table", name, known["tables"])
    table = known["tables"][name]
    prompt, output = (
        QuantileTable(percent=known["percent"], tokens=table[column]) for column in ("prompt_tokens", "output_tokens")
    )
    return prompt, output


def _published() -> dict[str, Any]:
    return json.loads((files("traces") / "fits" / "lengths.json").read_text(encoding="utf-8"))


def lengths_of(settings: LengthSettings, rng: np.random.Generator) -> Iterator[tuple[int, int]] | None:
    """Draw (prompt, output) tokens without end; ``None`` if the rows of the trace have them.

    Raises:
        ValueError: the data set is unknown, or the file of the rows is not usable.
    """
    if settings.n_prompt_tokens is not None and settings.n_output_tokens is not None:
        return repeat((settings.n_prompt_tokens, settings.n_output_tokens))
    if settings.table is not None:
        prompt, output = load_tables(settings.table)
        return pairs(prompt, output, settings.spearman, rng)
    if settings.path is not None:
        return drawn_pairs(load_pairs(Path(settings.path)), rng)
    return None


def pairs(
    prompt: QuantileTable, output: QuantileTable, spearman: float, rng: np.random.Generator
) -> Iterator[tuple[int, int]]:
    """Draw (prompt, output) tokens, coupled by a Gaussian copula, without end.

    A pair may be longer than any in the data set: the copula does not know of a bound on the sum.

    Source: for a Gaussian copula Spearman's rho_s and the correlation rho of the normals
    obey rho = 2 sin(pi rho_s / 6) (Kruskal, 1958).
    """
    rho = 2 * sin(pi * spearman / 6)
    while True:
        first, second = rng.standard_normal((2, BLOCK))
        second = rho * first + sqrt(1 - rho**2) * second
        yield from zip(prompt.at(_normal_cdf(first)), output.at(_normal_cdf(second)), strict=True)


def _normal_cdf(deviates: np.ndarray) -> np.ndarray:
    return np.array([0.5 + 0.5 * erf(deviate / sqrt(2)) for deviate in deviates.tolist()])
