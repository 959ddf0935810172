"""Up to which rate something holds: steps away from a guess that grow, then bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

FIRST_STEP = 1.06
"""By which the guess is changed first; each step after it is the square of the one before."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """``holds`` is true at ``low`` and false at ``high``. ``low`` is 0 if it was nowhere, ``high`` infinite likewise."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The rate that stands for the bracket: its geometric mean, or the end that is there."""
        if self.low == 0:
            return 0.0
        return self.low if self.high == float("inf") else sqrt(self.low * self.high)


def limit(holds: Callable[[float], bool], guess: float, *, precision: float, least: float, most: float) -> Bracket:
    """Bracket the rate up to which ``holds`` is true.

    Where it is true again above a rate at which it is false, any such change may be found.

    Args:
        guess: within ``least`` and ``most``.
        precision: of the bracket: its ends differ by this factor less 1 at most.
        least, most: rates beyond which nothing is tried.
    """
    step = FIRST_STEP
    if holds(guess):
        low, high = guess, guess
        while high == low:
            tried = min(most, low * step)
            if holds(tried):
                if tried == most:
                    return Bracket(most, float("inf"))
                low = high = tried
                step *= step
            else:
                high = tried
    else:
        low, high = guess, guess
        while high == low:
            tried = max(least, high / step)
            if holds(tried):
                low = tried
            elif tried == least:
                return Bracket(0.0, least)
            else:
                low = high = tried
                step *= step
    while high > low * (1 + precision):
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Bracket(low, high)
