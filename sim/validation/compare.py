"""Figures of a real run beside those of its simulation: the error of each, and which of them are out of tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from policies.types import GIB, NS_PER_S
from traces.results.folder import RunTables
from traces.results.metrics import Figures, summarise

NS_PER_MS = 10**6

Unit = Literal["s", "ms", "/s", "GiB", ""]

SCALES: Mapping[Unit, float] = {"s": NS_PER_S, "ms": NS_PER_MS, "/s": 1, "GiB": GIB, "": 1}
"""By what a figure is divided to be in its unit."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run."""

    name: str
    unit: Unit
    of: Callable[[Figures], float | None]


METRICS = (
    Metric("tokens_per_s", "/s", lambda figures: figures.output_tokens_per_s),
    Metric("ttft_p50", "s", lambda figures: figures.ttft.p50_ns),
    Metric("ttft_p99", "s", lambda figures: figures.ttft.p99_ns),
    Metric("tbt_p50", "ms", lambda figures: figures.gap.p50_ns),
    Metric("tbt_p99", "ms", lambda figures: figures.gap.p99_ns),
    Metric("tpot_mean", "ms", lambda figures: figures.mean_gap.mean_ns),
    Metric("tpot_p99", "ms", lambda figures: figures.mean_gap.p99_ns),
    Metric("preemptions", "", lambda figures: figures.n_preemptions),
    Metric("lends", "", lambda figures: figures.n_lends),
    Metric("reverts", "", lambda figures: figures.n_reverts),
    Metric("peak_lent", "GiB", lambda figures: figures.peak_lent_bytes),
    Metric("busy", "s", lambda figures: figures.busy_ns),
    Metric("stall", "s", lambda figures: figures.stall_ns),
    Metric("finished", "", lambda figures: figures.n_finished),
)
"""What is compared, for all models together and for each."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a figure may be off: by a share, or by so many decode steps if that is more."""

    share: float
    n_steps: float = 0.0

    def __post_init__(self) -> None:
        if self.share < 0 or self.n_steps < 0:
            raise ValueError(f"a tolerance of {self.share:.0%} or {self.n_steps:g} steps must not be negative")


TOLERANCES: Mapping[str, Tolerance] = {
    "tokens_per_s": Tolerance(0.05),
    "tbt_p50": Tolerance(0.05),
    "tbt_p99": Tolerance(0.10),
    "ttft_p99": Tolerance(0.10, n_steps=2),
}
"""What a simulation must meet: of all models together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of both.

    Attributes:
        model: ``None``: all of them together.
        real, simulated: in ``unit``; ``None``: the run did not keep what it takes.
        error: simulated over real, less 1; ``None`` if there is no such ratio.
        error_steps: the difference of two durations in decode steps of the real run.
        is_within: ``None`` if it has no tolerance.
    """

    metric: str
    unit: Unit
    model: str | None
    real: float | None
    simulated: float | None
    error: float | None
    error_steps: float | None
    is_within: bool | None


def compare(real: RunTables, simulated: RunTables, tolerances: Mapping[str, Tolerance]) -> list[Compared]:
    """Hold every figure of one run against that of the other; steps are compared by their number.

    Raises:
        ValueError: a tolerance is of a figure that there is not.
    """
    if unknown := sorted(set(tolerances) - {metric.name for metric in METRICS}):
        names = ", ".join(metric.name for metric in METRICS)
        raise ValueError(f"no figure {', '.join(unknown)}; there are {names}")
    step_ns = decode_step_ns(real)
    ours, theirs = summarise(simulated), summarise(real)
    found = [compared(metric, None, theirs.total, ours.total, step_ns, tolerances) for metric in METRICS]
    found.append(_steps(real, simulated))
    if len(real.info.models) > 1:
        for model, its, our in zip(real.info.models, theirs.by_model, ours.by_model, strict=True):
            found += [compared(metric, model.name, its, our, step_ns, {}) for metric in METRICS]
    return found


def compared(
    metric: Metric,
    model: str | None,
    real: Figures,
    simulated: Figures,
    step_ns: float | None,
    tolerances: Mapping[str, Tolerance],
) -> Compared:
    """Hold one figure against that of the real run; ``step_ns``: see ``decode_step_ns``."""
    its, ours = metric.of(real), metric.of(simulated)
    error = error_steps = is_within = None
    if its is not None and ours is not None:
        error = ours / its - 1 if its else (0.0 if ours == its else None)
        if metric.unit in ("s", "ms") and step_ns:
            error_steps = (ours - its) / step_ns
        if metric.name in tolerances:
            is_within = _is_within(tolerances[metric.name], error, error_steps)
    return Compared(
        metric=metric.name,
        unit=metric.unit,
        model=model,
        real=None if its is None else its / SCALES[metric.unit],
        simulated=None if ours is None else ours / SCALES[metric.unit],
        error=error,
        error_steps=error_steps,
        is_within=is_within,
    )


def _is_within(tolerance: Tolerance, error: float | None, error_steps: float | None) -> bool:
    by_share = error is not None and abs(error) <= tolerance.share
    return by_share or (error_steps is not None and abs(error_steps) <= tolerance.n_steps)


def _steps(real: RunTables, simulated: RunTables) -> Compared:
    n_real, n_simulated = n_steps(real), n_steps(simulated)
    return Compared(
        metric="steps",
        unit="",
        model=None,
        real=n_real,
        simulated=n_simulated,
        error=n_simulated / n_real - 1 if n_real and n_simulated is not None else None,
        error_steps=None,
        is_within=None,
    )


def n_steps(run: RunTables) -> int | None:
    """Count the steps of all models; ``None`` if they were not kept."""
    if "steps" not in run.kept:
        return None
    return sum(len(piece["model"]) for piece in run.pieces("steps", ("model",)))


def decode_step_ns(run: RunTables) -> float | None:
    """Median duration of a step that only decodes."""
    if "steps" not in run.kept:
        return None
    steps = run.columns("steps", ("start_ns", "end_ns", "n_prefill_tokens"))
    lasted_ns = (steps["end_ns"] - steps["start_ns"])[steps["n_prefill_tokens"] == 0]
    return float(np.median(lasted_ns)) if len(lasted_ns) else None


def table(found: Sequence[Compared]) -> str:
    """Both runs beside each other, a line a figure."""
    lines = [f"{'':20} {'real':>12} {'simulated':>12} {'error':>9} {'steps':>8}"]
    model: str | None = None
    for each in found:
        if each.model != model:
            model = each.model
            lines.append(f"{model}:")
        verdict = {None: "", True: "  within", False: "  OUT OF TOLERANCE"}[each.is_within]
        name = f"{each.metric} {f'({each.unit})' if each.unit else ''}"
        error = "-" if each.error is None else f"{each.error:+.2%}"
        steps = "" if each.error_steps is None else f"{each.error_steps:+.2f}"
        lines.append(f"{name:20} {figure(each.real):>12} {figure(each.simulated):>12} {error:>9} {steps:>8}{verdict}")
    return "\n".join(line.rstrip() for line in lines)


def figure(value: float | None) -> str:
    """Write a figure with as many digits as it is worth."""
    if value is None:
        return "not kept"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"
