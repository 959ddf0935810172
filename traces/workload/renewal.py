"""Renewal arrivals: independent Gamma gaps with a chosen spread, the common stand-in for bursty traffic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from policies.types import NS_PER_S
from traces.workload.arrivals import BLOCK, MIN_RATE_PER_S

MAX_CV = 100.0
"""Above it nearly all gaps are 0 and the rest hours: no trace has it (Azure 2023 code: 13)."""


def gamma(rate_per_s: float, cv: float, rng: np.random.Generator) -> Iterator[int]:
    """Draw arrivals with Gamma gaps, in ns from 0, without end.

    It has the spread of the gaps that was asked for and no memory: a trace with the same CV whose bursts last
    (Azure 2023 code) has far lower counts in its busiest second.

    Args:
        rate_per_s: mean number of requests/s.
        cv: coefficient of variation of the gaps; 1 is Poisson.

    Raises:
        ValueError: a number is out of range.
    """
    if not MIN_RATE_PER_S <= rate_per_s < float("inf"):
        raise ValueError(f"rate={rate_per_s} requests/s is outside {MIN_RATE_PER_S}..inf")
    if not 0 < cv <= MAX_CV:
        raise ValueError(f"cv={cv} is outside (0, {MAX_CV:g}]")
    return _gamma(shape=cv**-2, scale_ns=cv**2 * NS_PER_S / rate_per_s, rng=rng)


def _gamma(shape: float, scale_ns: float, rng: np.random.Generator) -> Iterator[int]:
    now_ns = 0
    while True:
        for gap_ns in rng.gamma(shape, scale_ns, BLOCK).tolist():
            now_ns += round(gap_ns)
            yield now_ns
