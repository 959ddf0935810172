"""Where arrivals come from, by settings: a trace file, its fitted stand-in, or a process of a chosen burstiness."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from traces.formats import TraceRow
from traces.formats.values import UNITS_NS
from traces.workload.arrivals import ModulatedPoisson, compress, modulated_poisson, poisson, thin
from traces.workload.block_gamma import BlockGamma, block_gamma
from traces.workload.renewal import MAX_CV, gamma
from traces.workload.replay import measure
from traces.workload.settings import refuse_unused, require_choice, require_positive

SCALINGS = ("compress", "thin")

USES = {
    "file": ("path", "time_unit", "rate", "scaling", "window_start_s", "window_s", "busiest"),
    "modulated_poisson": ("fit", "rate", "scaling"),
    "block_gamma": ("fit", "rate", "scaling"),
    "gamma": ("rate", "cv"),
    "poisson": ("rate",),
}
"""Settings that each kind reads."""

NEEDS = {
    "file": ("path",),
    "modulated_poisson": ("fit",),
    "block_gamma": ("fit",),
    "gamma": ("rate", "cv"),
    "poisson": ("rate",),
}
"""Settings that each kind cannot do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSettings:
    """Which arrivals, at which rate.

    Attributes:
        kind: ``file``, ``modulated_poisson``, ``block_gamma``, ``gamma`` or ``poisson``.
        path: the trace file of ``file``, of any format in ``traces/formats``, plain or gzip.
        time_unit: of its times if they are numbers: ``s``, ``ms``, ``us``, ``ns``; ``None``: what a date since 1970
            shows, else as its format has it.
        fit: parameters of ``modulated_poisson`` or ``block_gamma``: the name of a file in ``traces/fits``.
        cv: coefficient of variation of the gaps of ``gamma``; 1 is Poisson.
        rate: requests/s of all models together; ``None`` keeps the source's own mean rate.
        scaling: how a rate is reached, ``compress`` or ``thin`` (see ``traces/workload/arrivals.py``).
        window_start_s, window_s: the part of the trace to replay, in its own time, before
            any scaling; ``window_s=None`` is the rest of the trace.
        busiest: replay the ``window_s`` with most rows, wherever it is.

    Raises:
        ValueError: a choice is unknown, a number out of range, a setting without effect or missing.
    """

    kind: str
    path: str | None = None
    time_unit: str | None = None
    fit: str | None = None
    cv: float | None = None
    rate: float | None = None
    scaling: str = "compress"
    window_start_s: float = 0.0
    window_s: float | None = None
    busiest: bool = False

    def __post_init__(self) -> None:
        require_choice("arrivals.kind", self.kind, USES)
        require_choice("arrivals.scaling", self.scaling, SCALINGS)
        refuse_unused("arrivals", self, "kind", USES[self.kind])
        if self.time_unit is not None:
            require_choice("arrivals.time_unit", self.time_unit, UNITS_NS)
        require_positive("arrivals.rate", self.rate, "requests/s")
        if self.cv is not None and not 0 < self.cv <= MAX_CV:
            raise ValueError(f"arrivals.cv={self.cv} is outside (0, {MAX_CV:g}]")
        require_positive("arrivals.window_s", self.window_s, "s")
        if not 0 <= self.window_start_s < float("inf"):
            raise ValueError(f"arrivals.window_start_s={self.window_start_s} s must be a finite number, 0 or more")
        for needed in NEEDS[self.kind]:
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


@dataclass(frozen=True, slots=True)
class BlockGammaSource:
    """A doubly stochastic Poisson process with the parameters of a fit."""

    name: str
    process: BlockGamma
    n_failed: int = 0

    @property
    def label(self) -> str:
        """What it is, for a person."""
        return f"doubly stochastic Poisson arrivals fitted to {self.name}"

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s in the long run."""
        return self.process.mean_rate_per_s

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, None]]:
        """Draw endless arrivals; ``phase`` is not used, since ``rng`` differs."""
        del phase
        return zip(block_gamma(self.process, rng), repeat(None))


@dataclass(frozen=True, slots=True)
class GammaSource:
    """A renewal process with Gamma gaps."""

    mean_rate_per_s: float
    cv: float
    n_failed: int = 0

    @property
    def label(self) -> str:
        """What it is, for a person."""
        return f"arrivals with Gamma gaps of CV {self.cv:g}"

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, None]]:
        """Draw endless arrivals; ``phase`` is not used, since ``rng`` differs."""
        del phase
        return zip(gamma(self.mean_rate_per_s, self.cv, rng), repeat(None))


def source_of(settings: ArrivalSettings) -> Source:
    """Build the source that ``settings`` name; a trace file is read once, to measure it.

    Raises:
        ValueError: the file or the fit is not usable.
    """
    if settings.path is not None:
        return measure(
            Path(settings.path),
            time_unit=settings.time_unit,
            start_s=settings.window_start_s,
            duration_s=settings.window_s,
            busiest=settings.busiest,
        )
    if settings.fit is not None:
        if settings.kind == "block_gamma":
            return BlockGammaSource(settings.fit, BlockGamma(**_parameters(settings.fit, settings.kind)))
        return ModulatedSource(settings.fit, load_fit(settings.fit))
    assert settings.rate is not None  # ArrivalSettings refuses the other kinds without a rate
    if settings.cv is not None:
        return GammaSource(settings.rate, settings.cv)
    return PoissonSource(settings.rate)


def load_fit(name: str) -> ModulatedPoisson:
    """Load the parameters of a modulated Poisson process that come with this package.

    Raises:
        ValueError: there is no fit of that name.
    """
    return ModulatedPoisson(**_parameters(name, "modulated_poisson"))


def fits() -> dict[str, str]:
    """The fits that come with this package: name -> kind of arrivals."""
    return {name: kind for kind, named in _all_fits().items() for name in named}


def _parameters(name: str, kind: str) -> dict[str, Any]:
    known = _all_fits()[kind]
    require_choice("arrivals.fit", name, known)
    return {key: value for key, value in known[name].items() if key != "source"}


def _all_fits() -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads((files("traces") / "fits" / "arrivals.json").read_text(encoding="utf-8"))


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
