"""When requests arrive: processes as endless iterators of integer ns, and the two ways to change a rate.

A rate is changed in one of two ways that are not the same thing, so each has a name.
IDC(w) is the index of dispersion, variance over mean of the counts in windows of w
seconds:

- ``compress`` divides time by f. Inter-arrival times keep their coefficient of
  variation, and bursts become denser: IDC_f(w) = IDC(f w).
- ``thin`` keeps each arrival with probability p. Bursts keep their duration and become
  sparser, towards Poisson: IDC -> 1 + p (IDC - 1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import TypeVar

import numpy as np

from policies.types import NS_PER_S

T = TypeVar("T")

BLOCK = 1024
"""Random numbers drawn at once: speed only."""

MIN_RATE_PER_S = 1e-6
"""One request in 11 days; a block of gaps below it would leave 64-bit nanoseconds."""


def poisson(rate_per_s: float, rng: np.random.Generator) -> Iterator[int]:
    """Draw the arrivals of a Poisson process, in ns from 0, without end.

    Raises:
        ValueError: the rate is below ``MIN_RATE_PER_S`` or not finite.
    """
    if not MIN_RATE_PER_S <= rate_per_s < float("inf"):
        raise ValueError(f"rate={rate_per_s} requests/s is outside {MIN_RATE_PER_S}..inf")
    return _poisson(rate_per_s, rng)


def _poisson(rate_per_s: float, rng: np.random.Generator) -> Iterator[int]:
    last_ns = 0
    while True:
        gaps_ns = np.rint(rng.exponential(NS_PER_S / rate_per_s, BLOCK)).astype(np.int64)
        times_ns = [last_ns + since for since in np.cumsum(gaps_ns).tolist()]
        yield from times_ns
        last_ns = times_ns[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulatedPoisson:
    """A Poisson process of batches whose rate follows a Markov chain in steps.

    Attributes:
        step_s: duration of a step; the chain moves at its end.
        batches_per_s: rate of batches in each state, (n_states,).
        transition: ``transition[i][j]``, probability to go from i to j, (n_states, n_states).
        mean_batch: mean of the geometric number of requests in a batch, >= 1.
        intra_gap_s: mean of the exponential gap between two requests of a batch.

    Raises:
        ValueError: shapes do not match, or a rate or probability is none.
    """

    step_s: float
    batches_per_s: Sequence[float]
    transition: Sequence[Sequence[float]]
    mean_batch: float
    intra_gap_s: float

    def __post_init__(self) -> None:
        n_states = len(self.batches_per_s)
        if n_states == 0 or [len(row) for row in self.transition] != [n_states] * n_states:
            raise ValueError(f"transition must have {n_states} rows of {n_states} probabilities, at least 1")
        for state, row in enumerate(self.transition):
            if not (min(row) >= 0 and abs(sum(row) - 1) <= 1e-4):  # the fit has 5 digits
                raise ValueError(f"transition[{state}] sums to {sum(row)}; give probabilities that sum to 1")
        if min(self.batches_per_s) < 0 or max(self.batches_per_s) == 0:
            raise ValueError(f"batches_per_s={self.batches_per_s} must be >= 0 and not all 0")
        if self.step_s <= 0 or self.mean_batch < 1 or self.intra_gap_s < 0:
            raise ValueError("step_s must be above 0, mean_batch at least 1, intra_gap_s at least 0")

    @property
    def stationary(self) -> list[float]:
        """Share of the steps spent in each state: the solution of pi = pi P, sum(pi) = 1."""
        transition = np.array(self.transition)
        n_states = len(transition)
        equations = np.vstack([transition.T - np.eye(n_states), np.ones(n_states)])
        shares: list[float] = np.linalg.lstsq(equations, np.append(np.zeros(n_states), 1.0))[0].clip(0).tolist()
        return shares

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s in the long run."""
        batches = zip(self.stationary, self.batches_per_s, strict=True)
        return self.mean_batch * sum(share * rate for share, rate in batches)


def modulated_poisson(process: ModulatedPoisson, rng: np.random.Generator) -> Iterator[int]:
    """Draw the arrivals of ``process``, in ns from 0, without end; the chain starts in its long-run state."""
    step_ns = round(process.step_s * NS_PER_S)
    moves = [_cumulative(row) for row in process.transition]
    state = bisect_right(_cumulative(process.stationary), rng.random())
    spilled: list[int] = []  # the last requests of a batch may fall into a later step
    for start_ns in count(0, step_ns):
        n_batches = int(rng.poisson(process.batches_per_s[state] * process.step_s))
        if n_batches:
            spilled += [start_ns + since for since in _batches_ns(process, n_batches, rng)]
            spilled.sort()
        due = bisect_right(spilled, start_ns + step_ns - 1)
        yield from spilled[:due]
        del spilled[:due]
        state = bisect_right(moves[state], rng.random())


def _batches_ns(process: ModulatedPoisson, n_batches: int, rng: np.random.Generator) -> list[int]:
    """Times of the requests of ``n_batches`` that begin in one step, in ns from its start, unsorted."""
    starts_s = rng.uniform(0.0, process.step_s, n_batches)
    sizes = rng.geometric(1 / process.mean_batch, n_batches)
    times_s = np.repeat(starts_s, sizes)
    gaps_s = rng.exponential(process.intra_gap_s, len(times_s))
    since_s = np.cumsum(gaps_s)
    since_s -= np.repeat(since_s[np.cumsum(sizes) - sizes], sizes)  # from the first request of each batch
    times_ns: list[int] = np.rint((times_s + since_s) * NS_PER_S).astype(np.int64).tolist()
    return times_ns


def _cumulative(shares: Sequence[float]) -> list[float]:
    """Upper bounds in 0..1 for ``bisect_right``, the last exactly 1."""
    bounds = list(accumulate(shares))
    return [bound / bounds[-1] for bound in bounds]


def compress(arrivals: Iterable[tuple[int, T]], factor: float) -> Iterator[tuple[int, T]]:
    """Divide the times of (time in ns, what comes with it) by ``factor``: the rate times ``factor``.

    Raises:
        ValueError: the factor is not a finite number above 0.
    """
    if not 0 < factor < float("inf"):
        raise ValueError(f"factor={factor} must be a finite number above 0")
    if factor == 1:
        return iter(arrivals)
    return ((round(arrival_ns / factor), item) for arrival_ns, item in arrivals)


def thin(arrivals: Iterable[T], keep: float, rng: np.random.Generator) -> Iterator[T]:
    """Keep each arrival with probability ``keep``, independently: the rate times ``keep``.

    Raises:
        ValueError: ``keep`` is outside (0, 1].
    """
    if not 0 < keep <= 1:
        raise ValueError(f"thinning keeps a share in (0, 1] of the arrivals, not {keep}; compress can raise a rate")
    return (arrival for arrival in arrivals if rng.random() < keep)


def busiest_window(times_ns: Iterable[int], duration_ns: int) -> tuple[int, int]:
    """Find the window of ``duration_ns`` with most arrivals, the earliest of equals, in one pass.

    Args:
        times_ns: nondecreasing; at most the arrivals of one window are held.
        duration_ns: at most the time from the first to the last arrival, plus 1.

    Returns:
        (start in ns, number of arrivals in [start, start + duration)); the window ends
        at the latest just after the last arrival.

    Raises:
        ValueError: the arrivals do not span ``duration_ns``.
    """
    window: deque[int] = deque()
    first_ns = last_ns = None
    start_ns = most = 0
    for last_ns in times_ns:
        first_ns = last_ns if first_ns is None else first_ns
        window.append(last_ns)
        while window[0] <= last_ns - duration_ns:
            window.popleft()
        if len(window) > most:
            start_ns, most = window[0], len(window)
    if first_ns is None or last_ns is None or last_ns + 1 - first_ns < duration_ns:
        span_s = 0.0 if first_ns is None or last_ns is None else (last_ns - first_ns) / NS_PER_S
        raise ValueError(f"arrivals over {span_s} s have no window of {duration_ns / NS_PER_S} s; shorten it")
    return min(start_ns, last_ns + 1 - duration_ns), most
