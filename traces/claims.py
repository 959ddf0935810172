"""A paper's numbers beside ours: which figure is compared, and over which runs it is averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from traces.results.folder import RunInfo
from traces.results.metrics import Figures, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run and its figures."""

    info: RunInfo
    summary: Summary


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that systems are compared by, with its definition in words."""

    definition: str
    of: Callable[[Figures], float | None]


METRICS: Mapping[str, Metric] = {
    "ttft_p50": Metric("P50 over requests of first token minus arrival", lambda figures: figures.ttft.p50_ns),
    "ttft_p99": Metric("P99 over requests of first token minus arrival", lambda figures: figures.ttft.p99_ns),
    "mean_gap_p50": Metric("P50 over requests of the mean gap", lambda figures: figures.mean_gap.p50_ns),
    "mean_gap_p99": Metric("P99 over requests of the mean gap", lambda figures: figures.mean_gap.p99_ns),
    "max_gap_p99": Metric("P99 over requests of the largest gap", lambda figures: figures.max_gap.p99_ns),
    "gap_p50": Metric("P50 over all gaps", lambda figures: figures.gap.p50_ns),
    "gap_p99": Metric("P99 over all gaps", lambda figures: figures.gap.p99_ns),
    "gap_p999": Metric("P99.9 over all gaps", lambda figures: figures.gap.p999_ns),
    "output_tokens_per_s": Metric("output tokens/s over the makespan", lambda figures: figures.output_tokens_per_s),
    "total_tokens_per_s": Metric("all tokens/s over the makespan", lambda figures: figures.total_tokens_per_s),
}

TBT_P99 = "max_gap_p99"
"""What "P99 TBT" is taken for, which MIRAGE does not define: claims are scored by it and figures show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A change that a paper reports of one system against another.

    Attributes:
        text: what is claimed, in a few words.
        source: where the paper says it.
        mix: the models that it is about.
        kind: whether ``value_percent`` is how much less, or how much more.
        metrics: names in ``METRICS``; the first is the likeliest reading, the others are printed beside it.

    Raises:
        ValueError: a metric or the kind is unknown.
    """

    id: str
    text: str
    source: str
    mix: str
    baseline: str
    system: str
    kind: Literal["reduction", "increase"]
    value_percent: float
    metrics: tuple[str, ...]

    def __post_init__(self) -> None:
        if unknown := [name for name in self.metrics if name not in METRICS]:
            raise ValueError(f"claim {self.id}: metrics {unknown} are unknown; take from {', '.join(METRICS)}")
        if self.kind not in ("reduction", "increase"):
            raise ValueError(f"claim {self.id}: kind {self.kind!r} must be reduction or increase")

    @property
    def change(self) -> float:
        """The claim as a relative change: -0.5 is half as much."""
        return self.value_percent / 100 * (-1 if self.kind == "reduction" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Our relative change by one metric: its mean over the points, and the least and the greatest."""

    metric: Metric
    mean: float
    low: float
    high: float
    n_points: int


def findings(claim: Claim, results: Sequence[Result]) -> tuple[Finding, ...]:
    """Compare the claim's systems by each of its metrics.

    A point is one mix, workload, rate and seed that both systems ran. The paper averages
    over data sets and loads; ours is the mean over points of the relative change.

    Returns:
        One for each metric that both systems have at some point.
    """
    found: list[Finding] = []
    for name in claim.metrics:
        changes = list(_changes(claim, METRICS[name], results))
        if changes:
            found.append(
                Finding(
                    metric=METRICS[name],
                    mean=fmean(changes),
                    low=min(changes),
                    high=max(changes),
                    n_points=len(changes),
                )
            )
    return tuple(found)


def _changes(claim: Claim, metric: Metric, results: Sequence[Result]) -> Iterator[float]:
    ours = {_point(result): result for result in results if result.info.label == claim.system}
    for base in results:
        if base.info.label != claim.baseline or base.info.mix != claim.mix or _point(base) not in ours:
            continue
        before, after = (metric.of(each.summary.total) for each in (base, ours[_point(base)]))
        if before and after is not None:
            yield after / before - 1


def _point(result: Result) -> tuple[str, str, float | None, int]:
    info = result.info
    return info.mix, info.workload, info.rate_per_s, info.seed
