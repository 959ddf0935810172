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

        Where it is true again above a rate at which it is false, any such change may be found.
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
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if at(middle) else (low, middle)
        return Bracket(self.rate(low), self.rate(high))
