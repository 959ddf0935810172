"""A rate that changes by phases: a stream's time is stretched where there is less traffic, and squeezed where more.

Bursts within a phase keep their shape. A model whose turn in the cycle comes later has its phases shifted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from typing import TypeVar

from policies.types import NS_PER_S

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phases that follow each other again and again.

    Args:
        lasts_s: duration of each, s.
        factors: of the rate in each; 0: nothing arrives.

    Raises:
        ValueError: they are not as many, a duration is not positive, a factor negative, or all factors 0.
    """

    lasts_s: Sequence[float]
    factors: Sequence[float]
    _ends_s: list[float] = field(init=False, repr=False)
    _done: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.lasts_s) != len(self.factors):
            raise ValueError(f"workload.phase_s has {len(self.lasts_s)}, phase_factors {len(self.factors)} values")
        if not all(isfinite(lasts) and lasts > 0 for lasts in self.lasts_s):
            raise ValueError(f"workload.phase_s={list(self.lasts_s)} s must be positive")
        if not all(isfinite(factor) and factor >= 0 for factor in self.factors) or not any(self.factors):
            raise ValueError(f"workload.phase_factors={list(self.factors)} must be at least 0, and not all 0")
        object.__setattr__(self, "_ends_s", [0.0, *accumulate(self.lasts_s)])
        work = (lasts * factor for lasts, factor in zip(self.lasts_s, self.factors, strict=True))
        object.__setattr__(self, "_done", [0.0, *accumulate(work)])

    def at_s(self, work_s: float) -> float:
        """When a stream that would be at ``work_s`` under a factor of 1 is there."""
        cycles, rest = divmod(work_s, self._done[-1])
        phase = min(bisect_right(self._done, rest) - 1, len(self.factors) - 1)
        in_phase = rest - self._done[phase]
        return cycles * self._ends_s[-1] + self._ends_s[phase] + (in_phase / self.factors[phase] if in_phase else 0.0)

    def work_s(self, at_s: float) -> float:
        """The inverse: how far a stream would be under a factor of 1."""
        cycles, rest = divmod(at_s, self._ends_s[-1])
        phase = min(bisect_right(self._ends_s, rest) - 1, len(self.factors) - 1)
        return cycles * self._done[-1] + self._done[phase] + (rest - self._ends_s[phase]) * self.factors[phase]

    def apply(self, arrivals: Iterable[tuple[int, Row]], shift: float = 0.0) -> Iterator[tuple[int, Row]]:
        """Put arrivals, in ns and in order, at their times.

        Args:
            shift: share of the whole cycle by which the stream is ahead in it.
        """
        start_s = shift * self._ends_s[-1]
        begun_s = self.work_s(start_s)
        for arrival_ns, row in arrivals:
            yield round((self.at_s(begun_s + arrival_ns / NS_PER_S) - start_s) * NS_PER_S), row
