"""What the simulator must reach on a machine of two cores, and which of it a measurement missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

STARTS_WITHIN_S = 0.8
"""From the command to the first request."""

MOST_EXPONENT = 1.05
"""Of the growth of time with requests: 1 is linear."""

MOST_FOR_DOUBLE_OUTPUT = 1.15
"""CPU of the engine for twice the output tokens in batches of the same size."""

HARDLY_LONGER = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The most that a run may take."""

    wall_s: float
    peak_mib: float | None = None


TARGETS: Mapping[tuple[str, int], Target] = {
    ("fixed", 10_000): Target(wall_s=1.3),
    ("fixed", 100_000): Target(wall_s=5, peak_mib=300),
    ("fixed", 1_000_000): Target(wall_s=50, peak_mib=1024),
    ("c1", 100_000): Target(wall_s=30),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A workload with so many requests, as a whole process; medians where there were several runs.

    Attributes:
        starts_s: until the folder of the run is there: the engine begins.
        n_tokens: prompt and output tokens of all requests.
        submissions_per_request: batches that the engine had run, each for a step or many; of a thousand requests.
    """

    workload: str
    n_requests: int
    n_runs: int
    wall_s: float
    starts_s: float
    cpu_s: float
    peak_mib: float
    n_tokens: int
    submissions_per_request: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubling:
    """CPU seconds of the thread of the engine, for some output tokens and for twice as many."""

    once_s: float
    twice_s: float


def exponent(rows: Sequence[Row], start_up_s: float) -> float | None:
    """Fit the power of the number of requests with which time grows, start-up taken off.

    Rows that are hardly longer than the start-up say nothing; ``None`` if fewer than two are left.
    """
    told = [row for row in rows if row.wall_s > HARDLY_LONGER * start_up_s]
    if len(told) < 2:
        return None
    n_requests = [log(row.n_requests) for row in told]
    slope, _ = np.polyfit(n_requests, [log(row.wall_s - start_up_s) for row in told], 1)
    return float(slope)


def missed(rows: Sequence[Row], exponents: Mapping[str, float | None], doubling: Doubling | None) -> Iterator[str]:
    """Tell each target that was measured and not reached."""
    for row in rows:
        yield from _missed_by(row)
    for workload, power in exponents.items():
        if power is not None and power > MOST_EXPONENT:
            yield f"{workload}: time grows with requests to the {power:.2f}, more than {MOST_EXPONENT}"
    if doubling is not None and doubling.twice_s > MOST_FOR_DOUBLE_OUTPUT * doubling.once_s:
        yield f"twice the output takes {doubling.twice_s / doubling.once_s:.2f} times, not {MOST_FOR_DOUBLE_OUTPUT}"


def _missed_by(row: Row) -> Iterator[str]:
    name = f"{row.workload}, {row.n_requests:,} requests"
    if row.starts_s > STARTS_WITHIN_S:
        yield f"{name}: starts after {row.starts_s:.2f} s, not {STARTS_WITHIN_S} s"
    target = TARGETS.get((row.workload, row.n_requests))
    if target is None:
        return
    if row.wall_s > target.wall_s:
        yield f"{name}: {row.wall_s:.2f} s, not {target.wall_s} s"
    if target.peak_mib is not None and row.peak_mib > target.peak_mib:
        yield f"{name}: {row.peak_mib:.0f} MiB, not {target.peak_mib:.0f} MiB"
