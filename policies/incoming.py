"""What arrives next: arrivals that are listed, and those that the finish of another request brings about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

from policies.types import Arrival, Request

NEVER: Final = 2**62

Follow = Callable[[Request, int], Iterable[Arrival]]
"""(a request that has finished, when) -> the arrivals that it brings about, none of them earlier."""


class Incoming:
    """Arrivals in order of time; at one instant those listed come before those that follow a finish.

    Args:
        follow: what a finish brings about; ``None``: nothing.

    Attributes:
        next_ns: when the next one arrives, ``NEVER`` if none is known.
    """

    def __init__(self, follow: Follow | None = None) -> None:
        self.next_ns = NEVER
        self.follow = follow
        self._listed: Iterator[Arrival] = iter(())
        self._head: Arrival | None = None
        self._followers: list[tuple[int, int, Arrival]] = []  # (arrival, order of being known, what arrives)
        self._n_followers = 0

    def open(self, listed: Iterator[Arrival]) -> None:
        """Take arrivals from a list, nondecreasing in ``arrival_ns``."""
        self._listed = listed
        self._head = next(listed, None)
        self._look()

    def pop(self) -> Arrival:
        """Take the next one.

        Raises:
            ValueError: the one listed behind it comes before it.
        """
        head = self._head
        if self._followers and (head is None or self._followers[0][0] < head.request.arrival_ns):
            arrival = heappop(self._followers)[2]
            self._look()
            return arrival
        assert head is not None
        self._head = next(self._listed, None)
        self._look()
        if self.next_ns < head.request.arrival_ns:
            assert self._head is not None
            raise ValueError(
                f"request {self._head.request.request_id} arrives at {self.next_ns} ns, "
                f"before request {head.request.request_id}; sort the arrivals"
            )
        return head

    def finished(self, request: Request, finish_ns: int) -> None:
        """Expect what the finish of a request brings about."""
        assert self.follow is not None
        for arrival in self.follow(request, finish_ns):
            heappush(self._followers, (arrival.request.arrival_ns, self._n_followers, arrival))
            self._n_followers += 1
        self._look()

    def _look(self) -> None:
        self.next_ns = NEVER if self._head is None else self._head.request.arrival_ns
        if self._followers and self._followers[0][0] < self.next_ns:
            self.next_ns = self._followers[0][0]
