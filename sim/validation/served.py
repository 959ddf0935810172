"""A real server's run beside its replay: how far apart TTFT, TPOT and latency are, and the load second by second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from sim.validation.compare import SCALES, Compared, Tolerance, Unit
from traces.measured.server_log import Sample, Served
from traces.results.metrics import spread

STATISTICS = ("mean", "p50", "p90", "p99")

DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "ttft_mean": Tolerance(0.03),
    "tpot_mean": Tolerance(0.02),
    "latency_mean": Tolerance(0.03),
}
"""What a replay must meet."""

SeriesName = Literal["running", "waiting", "kv"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesError:
    """What is sampled over time, in both.

    Attributes:
        real, simulated: the mean over the samples; requests, or per cent of the KV cache.
        mean_off, p90_off, most_off: distance of two samples of one moment, in the same unit.
        is_within: whether ``mean_off`` is within its tolerance; ``None`` if it has none.
    """

    name: SeriesName
    real: float
    simulated: float
    mean_off: float
    p90_off: float
    most_off: float
    is_within: bool | None


@dataclass(frozen=True, slots=True)
class Measure:
    """One duration of a request, ``None`` if it has none."""

    name: str
    unit: Unit
    of: Callable[[Served], int | None]


def _tpot_ns(served: Served) -> int | None:
    n_gaps = served.n_output - 1
    return (served.last_token_ns - served.first_token_ns) // n_gaps if n_gaps else None


MEASURES = (
    Measure("ttft", "s", lambda served: served.first_token_ns - served.arrival_ns),
    Measure("tpot", "ms", _tpot_ns),
    Measure("latency", "s", lambda served: served.last_token_ns - served.arrival_ns),
)
"""TTFT and latency count from the arrival; TPOT is a request's mean gap between tokens, if it has two."""

SERIES: Mapping[SeriesName, Callable[[Sample], float]] = {
    "running": lambda sample: sample.n_running,
    "waiting": lambda sample: sample.n_waiting,
    "kv": lambda sample: 100 * sample.kv_share,
}

FIGURES = tuple(f"{measure.name}_{statistic}" for measure in MEASURES for statistic in STATISTICS)


def compare_requests(
    real: Sequence[Served], simulated: Sequence[Served], tolerances: Mapping[str, Tolerance]
) -> list[Compared]:
    """Hold the requests of both against each other.

    Raises:
        ValueError: a tolerance is of a figure that there is not.
    """
    known = (*FIGURES, *SERIES)
    if unknown := sorted(set(tolerances) - set(known)):
        raise ValueError(f"no figure {', '.join(unknown)}; there are {', '.join(known)}")
    found: list[Compared] = []
    for measure in MEASURES:
        its, ours = _statistics(measure, real), _statistics(measure, simulated)
        for statistic in its:
            name = f"{measure.name}_{statistic}"
            found.append(_compared(name, measure.unit, its[statistic], ours[statistic], tolerances.get(name)))
    return found


def compare_samples(
    real: Sequence[Sample], simulated: Sequence[Sample], tolerances: Mapping[str, Tolerance]
) -> list[SeriesError]:
    """Hold the samples of both against each other; a tolerance is in requests, or points of the KV cache."""
    found: list[SeriesError] = []
    for name, value in SERIES.items() if real else ():
        its, ours = np.array([*map(value, real)]), np.array([*map(value, simulated)])
        off = np.abs(ours - its)
        tolerance = tolerances.get(name)
        found.append(
            SeriesError(
                name=name,
                real=fmean(its),
                simulated=fmean(ours),
                mean_off=fmean(off),
                p90_off=float(np.quantile(off, 0.9, method="inverted_cdf")),
                most_off=float(off.max()),
                is_within=None if tolerance is None else bool(fmean(off) <= 100 * tolerance.share),
            )
        )
    return found


def series_table(found: Sequence[SeriesError]) -> str:
    """The samples of both beside each other, a line each."""
    lines = [f"{'over time, mean of':20} {'real':>12} {'simulated':>12} {'off by':>9} {'P90':>8} {'most':>8}"]
    for each in found:
        verdict = {None: "", True: "  within", False: "  OUT OF TOLERANCE"}[each.is_within]
        name = {"running": "running", "waiting": "waiting", "kv": "KV cache (%)"}[each.name]
        lines.append(
            f"{name:20} {each.real:>12.4g} {each.simulated:>12.4g} {each.mean_off:>9.2f} {each.p90_off:>8.2f} "
            f"{each.most_off:>8.2f}{verdict}"
        )
    return "\n".join(lines)


def _statistics(measure: Measure, requests: Sequence[Served]) -> dict[str, float]:
    """Mean and quantiles; nothing if no request has this."""
    values = [value for served in requests if (value := measure.of(served)) is not None]
    if not values:
        return {}
    its = spread(np.array(values, np.int64))
    figures = {"mean": its.mean_ns, "p50": its.p50_ns, "p90": its.p90_ns, "p99": its.p99_ns}
    return {name: float(figure) for name, figure in figures.items() if figure is not None}


def _compared(name: str, unit: Unit, real: float, simulated: float, tolerance: Tolerance | None) -> Compared:
    error = simulated / real - 1 if real else (0.0 if simulated == real else None)
    is_within = None if tolerance is None else error is not None and abs(error) <= tolerance.share
    return Compared(
        metric=name,
        unit=unit,
        model=None,
        real=real / SCALES[unit],
        simulated=simulated / SCALES[unit],
        error=error,
        error_steps=None,
        is_within=is_within,
    )
