"""Interpolation between durations that were measured at the corners of a grid, in whole nanoseconds.

Between two neighbours along an axis times are linear; below the first they are those of the first, beyond the last they
go on along the last slope (as ``Curve`` has it along one axis). A place without some of its corners, for
they did not fit into memory, takes what its other coordinates were measured at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Place = tuple[int, ...]


class Grid:
    """Whole nanoseconds over several integers.

    Args:
        points: (place, ns), at least one; all places have as many coordinates, at least one.
    """

    __slots__ = ("_at", "_beneath", "_ns")

    def __init__(self, points: Iterable[tuple[Place, int]]) -> None:
        rows: dict[int, list[tuple[Place, int]]] = {}
        self._ns: list[int] | None = None
        for (first, *rest), ns in points:
            rows.setdefault(first, []).append((tuple(rest), ns))
        if not rows:
            raise ValueError("a grid needs points")
        self._at = sorted(rows)
        self._beneath: list[Grid] = []
        if rows[self._at[0]][0][0]:
            self._beneath = [Grid(rows[at]) for at in self._at]
        else:
            self._ns = [rows[at][0][1] for at in self._at]

    def __call__(self, *place: int) -> int:
        """Interpolate; never below 0."""
        return max(0, self._between(place))

    def _between(self, place: Sequence[int]) -> int:
        at, ats = place[0], self._at
        right = min(bisect_right(ats, at), len(ats) - 1)
        left = right - 1
        if left < 0 or at <= ats[0]:
            return self._there(0, place)
        begin_ns = self._there(left, place)
        if at == ats[left]:
            return begin_ns
        rise_ns = self._there(right, place) - begin_ns
        return begin_ns + (at - ats[left]) * rise_ns // (ats[right] - ats[left])

    def _there(self, index: int, place: Sequence[int]) -> int:
        if self._ns is not None:
            return self._ns[index]
        return self._beneath[index]._between(place[1:])
