"""Arrivals whose rate drifts on several time scales at once: a doubly stochastic Poisson process in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from policies.types import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGamma:
    """A Poisson process of rate ``mean_rate_per_s`` times one factor a level.

    The factor of level i is constant over blocks of ``block_s[i]`` and drawn anew for each, with mean 1 and variance
    ``variances[i]``, from a Gamma distribution.

    Raises:
        ValueError: a number is not above 0, or there are not as many blocks as variances.
    """

    mean_rate_per_s: float
    block_s: Sequence[float]
    variances: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.block_s) != len(self.variances) or not self.block_s:
            raise ValueError(f"{len(self.block_s)} block_s need as many variances, at least 1")
        if min(self.mean_rate_per_s, *self.block_s, *self.variances) <= 0:
            raise ValueError("mean_rate_per_s, block_s and variances must be above 0")

    def dispersion(self, window_s: float, n_steps: int = 20_000) -> float:
        """Variance over mean of the counts in windows of ``window_s``: IDC(w), integrated numerically.

        Source: 1 + (2 rate / w) int_0^w (w - s) (prod_i (1 + v_i max(0, 1 - s / L_i)) - 1) ds.
        """
        lag_s = (np.arange(n_steps) + 0.5) * window_s / n_steps
        together = np.ones(n_steps)
        for block_s, variance in zip(self.block_s, self.variances, strict=True):
            together *= 1 + variance * np.maximum(0.0, 1 - lag_s / block_s)
        integral = float(((window_s - lag_s) * (together - 1)).mean()) * window_s
        return 1 + 2 * self.mean_rate_per_s / window_s * integral


def block_gamma(process: BlockGamma, rng: np.random.Generator) -> Iterator[int]:
    """Draw arrivals, in ns from 0, without end; the blocks have begun at some time before."""
    levels = range(len(process.block_s))
    factors = [_factor(variance, rng) for variance in process.variances]
    ends_s = [rng.uniform(0.0, block_s) for block_s in process.block_s]
    now_s = 0.0
    while True:
        end_s = min(ends_s)
        n_arrivals = int(rng.poisson(process.mean_rate_per_s * prod(factors) * (end_s - now_s)))
        yield from np.rint(np.sort(rng.uniform(now_s, end_s, n_arrivals)) * NS_PER_S).astype(np.int64).tolist()
        now_s = end_s
        for level in levels:
            if ends_s[level] <= now_s:
                ends_s[level] += process.block_s[level]
                factors[level] = _factor(process.variances[level], rng)


def _factor(variance: float, rng: np.random.Generator) -> float:
    return float(rng.gamma(1 / variance, variance))
