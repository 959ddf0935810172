"""A mean over seeds and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip
"""97.5 % quantiles of Student's t distribution with 1 to 19 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95 % interval: Student's t over independent seeds."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Sum up one value a seed, 2 to 20 of them."""
    mean = fmean(values)
    half = T_975[len(values) - 2] * stdev(values) / sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)
