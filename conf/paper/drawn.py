"""What a figure is drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean

from conf.build import Experiment
from traces.claims import METRICS, Result

Numbers = Mapping[str, float]
"""What a figure says in numbers, by name; claims read them by these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """An experiment that has run.

    Attributes:
        results, folders: of each run, in the same order.
        into: folder for the figure.
    """

    experiment: Experiment
    results: Sequence[Result]
    folders: Sequence[Path]
    into: Path

    @property
    def figure(self) -> Path:
        """Where the figure goes."""
        return self.into / "figure.png"

    @property
    def systems(self) -> tuple[str, ...]:
        """Compared, in order."""
        return tuple(dict.fromkeys(result.info.label for result in self.results))

    def runs(self, system: str) -> Iterator[tuple[Result, Path]]:
        """The runs of a system with their folders."""
        pairs = zip(self.results, self.folders, strict=True)
        return ((result, folder) for result, folder in pairs if result.info.label == system)

    def mean(self, system: str, metric: str, rate: float | None = None, workload: str | None = None) -> float:
        """Mean of a figure of merit over the runs of a system, of one rate and workload if they are given.

        Not a number where no run has one.
        """
        values = [
            value
            for result, _ in self.runs(system)
            if rate in (None, result.info.rate_per_s) and workload in (None, result.info.workload)
            if (value := METRICS[metric].of(result.summary.total)) is not None
        ]
        return fmean(values) if values else nan

    def rates(self) -> list[float]:
        """Every rate, increasing."""
        return sorted({result.info.rate_per_s for result in self.results if result.info.rate_per_s is not None})
