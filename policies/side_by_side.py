"""Which models compose when all run side by side (MPS, MIG)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from policies.lane import Lane


class SideBySide:
    """Lanes each of which has a step in flight whenever it can.

    Ties: at one instant finishes come first, in the order of the lanes; then arrivals; then lanes compose, in
    their order.
    """

    def __init__(self, lanes: Seq[Lane]) -> None:
        self._lanes = lanes

    def next_to_compose(self) -> Lane | None:
        """The first that could run and has nothing in flight."""
        for lane in self._lanes:
            if lane.in_flight is None and lane.is_ready():
                return lane
        return None

    def is_alone(self, lane: Lane) -> bool:
        """Whether nothing else runs or could run now: until something arrives no other lane can tell its steps."""
        for other in self._lanes:
            if other is not lane and (other.in_flight is not None or other.is_ready()):
                return False
        return True

    def anything_runs(self) -> bool:
        """Whether a step is in flight."""
        return any(lane.in_flight is not None for lane in self._lanes)

    def active(self) -> frozenset[int]:
        """Those with work: a policy sees them as running."""
        return frozenset(lane.index for lane in self._lanes if lane.scheduler.has_work())

    def idle(self) -> list[Lane]:
        """Those without work and with nothing in flight."""
        return [lane for lane in self._lanes if lane.in_flight is None and not lane.scheduler.has_work()]
