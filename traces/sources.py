"""Where arrivals come from, by settings: a trace file, its fitted stand-in, or a Poisson process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import repeat
from pathlib import Path
from typing import Protocol

import numpy as np

from traces.arrivals import ModulatedPoisson, compress, modulated_poisson, poisson, thin
from traces.formats import TraceRow
from traces.replay import measure
from traces.settings import refuse_unused, require_choice, require_positive

SCALINGS = ("compress", "thin")

USES = {
    "file": ("path", "rate", "scaling", "window_start_s", "window_s", "busiest"),
    "modulated_poisson": ("fit", "rate", "scaling"),
    "poisson": ("rate",),
}
"""Settings that each kind reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSettings:
    """Which arrivals, at which rate.

    Attributes:
        kind: ``file``, ``modulated_poisson`` or ``poisson``.
        path: the trace file of ``file``.
        fit: parameters of ``modulated_poisson``: the name of a file in ``traces/fits``.
        rate: requests/s of all models together; ``None`` keeps the source's own mean rate.
        scaling: how a rate is reached, ``compress`` or ``thin`` (see ``traces/arrivals.py``).
        window_start_s, window_s: the part of the trace to replay, in its own time, before
            any scaling; ``window_s=None`` is the rest of the trace.
        busiest: replay the ``window_s`` with most rows, wherever it is.

    Raises:
        ValueError: a choice is unknown, a number out of range, a setting without effect or missing.
    """

    kind: str
    path: str | None = None
    fit: str | None = None
    rate: float | None = None
    scaling: str = "compress"
    window_start_s: float = 0.0
    window_s: float | None = None
    busiest: bool = False

    def __post_init__(self) -> None:
        require_choice("arrivals.kind", self.kind, USES)
        require_choice("arrivals.scaling", self.scaling, SCALINGS)
        refuse_unused("arrivals", self, "kind", USES[self.kind])
        require_positive("arrivals.rate", self.rate, "requests/s")
        require_positive("arrivals.window_s", self.window_s, "s")
        if not 0 <= self.window_start_s < float("inf"):
            raise ValueError(f"arrivals.window_start_s={self.window_start_s} s must be a finite number, 0 or more")
        needed = {"file": "path", "modulated_poisson": "fit", "poisson": "rate"}[self.kind]
        if getattr(self, needed) is None:
            raise ValueError(f"arrivals.kind={self.kind} needs arrivals.{needed}; set it")
        if self.busiest and (self.window_s is None or self.window_start_s):
            raise ValueError("arrivals.busiest finds the start of a window itself; set window_s, and no window_start_s")


class Source(Protocol):
    """A process of arrivals with a mean rate; it may be run several times, in parallel."""

    @property
    def label(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s before any scaling."""
        ...

    @property
    def n_failed(self) -> int:
        """Failed rows left out."""
        ...

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, TraceRow | None]]:
        """(ns from 0, the row of the trace if there is one) in order of time.

        ``phase`` in 0..1 tells runs of one source apart that its ``rng`` does not.
        """
        ...


@dataclass(frozen=True, slots=True)
class PoissonSource:
    """A Poisson process."""

    mean_rate_per_s: float
    n_failed: int = 0

    @property
    def label(self) -> str:
        """What it is, for a person."""
        return "Poisson arrivals"

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, None]]:
        """Draw endless arrivals; ``phase`` is not used, since ``rng`` differs."""
        del phase
        return zip(poisson(self.mean_rate_per_s, rng), repeat(None))


@dataclass(frozen=True, slots=True)
class ModulatedSource:
    """A modulated Poisson process with the parameters of a fit."""

    name: str
    process: ModulatedPoisson
    n_failed: int = 0

    @property
    def label(self) -> str:
        """What it is, for a person."""
        return f"modulated Poisson arrivals fitted to {self.name}"

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s in the long run."""
        return self.process.mean_rate_per_s

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, None]]:
        """Draw endless arrivals; ``phase`` is not used, since ``rng`` differs."""
        del phase
        return zip(modulated_poisson(self.process, rng), repeat(None))


def source_of(settings: ArrivalSettings) -> Source:
    """Build the source that ``settings`` name; a trace file is read once, to measure it.

    Raises:
        ValueError: the file or the fit is not usable.
    """
    if settings.path is not None:
        return measure(
            Path(settings.path),
            start_s=settings.window_start_s,
            duration_s=settings.window_s,
            busiest=settings.busiest,
        )
    if settings.fit is not None:
        return ModulatedSource(settings.fit, load_fit(settings.fit))
    assert settings.rate is not None  # ArrivalSettings refuses Poisson arrivals without a rate
    return PoissonSource(settings.rate)


def load_fit(name: str) -> ModulatedPoisson:
    """Load the parameters of a modulated Poisson process that come with this package.

    Raises:
        ValueError: there is no fit of that name.
    """
    folder = files("traces") / "fits"
    known = sorted(file.name.removesuffix(".json") for file in folder.iterdir() if file.name != "lengths.json")
    require_choice("arrivals.fit", name, known)
    fit = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    del fit["source"]
    return ModulatedPoisson(**fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """A change of rate by ``factor`` >= 0, done in the named way.

    Raises:
        ValueError: thinning cannot raise a rate.
    """

    kind: str
    factor: float

    def __post_init__(self) -> None:
        if self.kind == "thin" and self.factor > 1:
            raise ValueError(
                f"arrivals.scaling=thin can only lower a rate, not multiply it by {self.factor:.4g}; "
                "set arrivals.scaling=compress or a lower arrivals.rate"
            )

    @property
    def label(self) -> str:
        """What is done, for a person."""
        if self.factor == 0:
            return "no request"
        if self.kind == "thin":
            return f"each kept with probability {self.factor:.4g}"
        return f"time divided by {self.factor:.4g}"

    def apply(
        self, arrivals: Iterator[tuple[int, TraceRow | None]], rng: np.random.Generator
    ) -> Iterator[tuple[int, TraceRow | None]]:
        """Change the rate; only ``thin`` draws from ``rng``. The factor is above 0."""
        if self.kind == "thin":
            return thin(arrivals, self.factor, rng)
        return compress(arrivals, self.factor)
