"""Interpolation of measured durations, in whole nanoseconds.

Between two measured points times are linear. Outside:

- below the first point the time is that of the first: launches and weights are there at any size;
- beyond the last it goes on along the last slope, where bandwidth or arithmetic binds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

Point = tuple[int, int]
"""Where, and nanoseconds there."""


class Curve:
    """Whole nanoseconds over an integer, linear between measured points.

    Args:
        points: at least one, in any order, no two at the same place.
        rising: dips are filled up to what came before.
    """

    __slots__ = ("_at", "_ns", "last")

    def __init__(self, points: Iterable[Point], *, rising: bool = False) -> None:
        ordered = sorted(points)
        self._at = [at for at, _ in ordered]
        self._ns = [ns for _, ns in ordered]
        if rising:
            self._ns = list(accumulate(self._ns, max))
        if not ordered or len(set(self._at)) < len(ordered):
            raise ValueError(f"a curve needs points at different places, not {ordered}")
        self.last = self._at[-1]

    @property
    def points(self) -> list[Point]:
        """The measured points, in order, dips filled up."""
        return list(zip(self._at, self._ns, strict=True))

    def __call__(self, at: int) -> int:
        """Interpolate."""
        first, begin, rise, run = self._piece(at)
        return first + (at - begin) * rise // run

    def along(self, first: int, n: int, step: int) -> list[int]:
        """Interpolate at ``first``, ``first + step``, ... (``n`` places, ``step`` >= 1)."""
        values: list[int] = []
        end = first + n * step
        for at in self._at[1:-1]:
            if at > first:
                middle = min(end, first + -(-(at - first) // step) * step)
                values += self._on_one_piece(first, middle, step)
                first = middle
        return values + self._on_one_piece(first, end, step)

    def _on_one_piece(self, first: int, end: int, step: int) -> list[int]:
        """Interpolate where only the foot of the first piece is flat."""
        if first >= end:
            return []
        n_flat = max(0, -(-(min(end, self._at[0]) - first) // step))
        base, begin, rise, run = self._piece(first + n_flat * step)
        rest = range(first + n_flat * step, end, step)
        return [self._ns[0]] * n_flat + [base + (at - begin) * rise // run for at in rest]

    def _piece(self, at: int) -> tuple[int, int, int, int]:
        """The line that holds at a place: value at its begin, its begin, its rise over its run."""
        left = min(bisect_right(self._at, at), len(self._at) - 1) - 1
        if left < 0:
            return self._ns[0], at, 0, 1
        rise, run = self._ns[left + 1] - self._ns[left], self._at[left + 1] - self._at[left]
        return self._ns[left], self._at[left], rise, run
