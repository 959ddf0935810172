"""Whether a figure of a simulation that is out of its tolerance is wrong, or one of many that might have come out.

Two questions, each of which can be answered with no:

- *Are the step times right?* With the run's own decisions nothing hangs on a step being a little longer, so here the
  figure must be within its tolerance as it is.
- *Is the run one of those that the simulation holds possible?* Replays, whose step times are off as much as the run's
  were, give other figures each. If the run is like them it lies outside all n of them with a chance of 2 / (n + 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.validation.compare import METRICS, SCALES, Compared, Metric, Tolerance, Unit, compared, figure
from traces.results.metrics import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One figure that has a tolerance.

    Attributes:
        alone: of the simulation that takes its own decisions.
        steps: of the one that took those of the run.
        replays: of the replays, in ``unit``, in order of size.
    """

    metric: str
    unit: Unit
    alone: Compared
    steps: Compared
    replays: tuple[float, ...]

    @property
    def is_among_replays(self) -> bool:
        """The run's figure is neither below nor above all replays."""
        real = self.alone.real
        return bool(self.replays) and real is not None and self.replays[0] <= real <= self.replays[-1]

    @property
    def is_within(self) -> bool:
        """By itself, or because step times are and the run is like the replays."""
        return bool(self.alone.is_within) or (bool(self.steps.is_within) and self.is_among_replays)

    @property
    def median(self) -> float | None:
        """The replay in the middle, the lower of two."""
        return self.replays[(len(self.replays) - 1) // 2] if self.replays else None

    @property
    def half_width(self) -> float | None:
        """Half of what lies between the least and the most, as a share of the run's figure."""
        real = self.alone.real
        return (self.replays[-1] - self.replays[0]) / 2 / real if self.replays and real else None


def judge(
    alone: Sequence[Compared],
    real: Figures,
    steps: Figures,
    replays: Sequence[Figures],
    step_ns: float | None,
    tolerances: Mapping[str, Tolerance],
) -> list[Judged]:
    """Judge every figure that has a tolerance, of all models together.

    Args:
        alone: of the simulation that takes its own decisions, as ``compare`` has them.
        real, steps: of the run, and of its decisions with simulated step times.
        replays: of runs whose steps are off as those of the run were.
        step_ns: see ``decode_step_ns``.
    """
    by_name = {each.metric: each for each in alone if each.model is None}
    return [
        Judged(
            metric=metric.name,
            unit=metric.unit,
            alone=by_name[metric.name],
            steps=compared(metric, None, real, steps, step_ns, tolerances),
            replays=_values(metric, replays),
        )
        for metric in METRICS
        if metric.name in tolerances
    ]


def _values(metric: Metric, replays: Sequence[Figures]) -> tuple[float, ...]:
    values = (metric.of(each) for each in replays)
    return tuple(sorted(value / SCALES[metric.unit] for value in values if value is not None))


def table(judged: Sequence[Judged]) -> str:
    """A line a figure: the run, its decisions with simulated step times, and the replays."""
    n = max(len(each.replays) for each in judged)
    lines = [
        f"Step times alone (with the run's decisions), and {n} replays with step times off as its own were; a run that",
        f"is like them lies outside all of them with a chance of 2 in {n + 1}",
        f"{'':20} {'real':>12} {'same steps':>12} {'error':>9} {'least':>12} {'median':>12} {'most':>12} {'half':>8}",
    ]
    lines += map(_line, judged)
    return "\n".join(lines)


def _line(each: Judged) -> str:
    name = f"{each.metric} {f'({each.unit})' if each.unit else ''}"
    error = "-" if each.steps.error is None else f"{each.steps.error:+.2%}"
    ends = (each.replays[0], each.median, each.replays[-1]) if each.replays else (None, None, None)
    half = "-" if each.half_width is None else f"{each.half_width:.1%}"
    replays = " ".join(f"{figure(value):>12}" for value in ends)
    return (
        f"{name:20} {figure(each.alone.real):>12} {figure(each.steps.simulated):>12} {error:>9} {replays} {half:>8}"
        f"  {_verdict(each)}"
    )


def _verdict(each: Judged) -> str:
    steps = "" if each.steps.is_within else "; STEP TIMES OUT OF TOLERANCE"
    if each.alone.is_within:
        return f"within{steps}"
    if each.is_within:
        return "within: step times are, and the run is among its replays"
    among = "among its replays" if each.is_among_replays else "OUTSIDE ITS REPLAYS"
    return f"OUT: {among}{steps}"
