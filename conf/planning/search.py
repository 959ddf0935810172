"""Up to which rate something holds: on a ladder of rates, by steps that grow away from a guess, then by bisection.

All systems that are compared stand on the same ladder, so that those which behave alike get the same rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import floor, inf, log, sqrt

FIRST_STEP = 2
"""Rungs from the guess to the first other rate that is tried; each step is twice the one before."""

LOOK_BACK = (1, 3, 7)
"""Rungs below the rate that bisection finds, at which it must hold, too."""

SPAN = 1000.0
"""Rates so many times below and above the first rung are tried."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """It holds at ``low`` and not at ``high``. ``low`` is 0 if it held nowhere, ``high`` infinite if everywhere."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The rate that stands for the bracket: its geometric mean, or the end that is there."""
        if self.low == 0:
            return 0.0
        return self.low if self.high == inf else sqrt(self.low * self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Rates that differ by a factor of ``1 + precision`` from one rung to the next; rung 0 is ``rate_per_s``."""

    rate_per_s: float
    precision: float

    def rate(self, rung: int) -> float:
        """The rate of a rung, which may be negative."""
        return self.rate_per_s * (1 + self.precision) ** rung

    def below(self, rate_per_s: float) -> int:
        """The highest rung that is not above a rate."""
        return floor(log(rate_per_s / self.rate_per_s) / log(1 + self.precision) + 1e-9)

    def limit(self, holds: Callable[[float], bool], guess: float) -> Bracket:
        """Bracket the rate up to which ``holds`` is true, by neighbouring rungs.

        Where it is false at a rate and true again above, the lower change is meant; the rungs ``LOOK_BACK`` below what
        bisection finds are looked at, and the search goes on from one where it is false.
        """

        @cache
        def at(rung: int) -> bool:
            return holds(self.rate(rung))

        furthest = self.below(self.rate_per_s * SPAN)
        low = high = max(-furthest, min(furthest, self.below(guess)))
        step = FIRST_STEP
        while at(low) == at(high):
            if at(high):
                if high == furthest:
                    return Bracket(self.rate(high), inf)
                low, high = high, min(furthest, high + step)
            else:
                if low == -furthest:
                    return Bracket(0.0, self.rate(low))
                low, high = max(-furthest, low - step), low
            step *= 2
        while True:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if at(middle) else (low, middle)
            broken = [low - back for back in LOOK_BACK if low - back >= -furthest and not at(low - back)]
            if not broken:
                return Bracket(self.rate(low), self.rate(high))
            high = min(broken)
            step = FIRST_STEP
            while not at(low := max(-furthest, high - step)):
                if low == -furthest:
                    return Bracket(0.0, self.rate(low))
                high, step = low, 2 * step
