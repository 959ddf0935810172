"""The host link again, as SimPy processes: what the arithmetic of ``link`` is held against."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any

from simpy import Environment, Event, Resource

from policies.types import NS_PER_S, LinkProfile

MILLION = 10**6


class Way(Enum):
    """The direction of a copy."""

    TO_DEVICE = "h2d"
    TO_HOST = "d2h"


class Wire:
    """Copies of two directions, each one at a time in order of request, and computation beside them.

    Args:
        env: counts integer nanoseconds.
        profile: bandwidth of each direction and of both together.
        slowdown_ppm: how much longer computation takes beside a copy, in millionths.
    """

    def __init__(self, env: Environment, profile: LinkProfile, slowdown_ppm: int = 0) -> None:
        self._env = env
        self._profile = profile
        self._slowdown_ppm = slowdown_ppm
        self._turns = {way: Resource(env) for way in Way}
        self._moving: set[Way] = set()
        self._switched = env.event()

    def copy(self, way: Way, n_bytes: int) -> Generator[Event, Any, None]:
        """Wait for the turn, then move the bytes."""
        turn = self._turns[way].request()
        yield turn
        self._moving.add(way)
        self._switch()
        left = n_bytes * NS_PER_S
        while left > 0:
            left -= yield from self._progress(left, self._bytes_per_s(way))
        self._moving.discard(way)
        self._switch()
        self._turns[way].release(turn)

    def compute(self, work_ns: int) -> Generator[Event, Any, None]:
        """Compute for ``work_ns``, longer while a copy moves."""
        left = work_ns * (MILLION + self._slowdown_ppm)
        while left > 0:
            left -= yield from self._progress(left, MILLION if self._moving else MILLION + self._slowdown_ppm)

    def _progress(self, left: int, rate: int) -> Generator[Event, Any, int]:
        """Go on at this rate until done or until a copy starts or ends; return what was done."""
        since_ns = int(self._env.now)
        yield self._env.timeout(-(-left // rate)) | self._switched
        return (int(self._env.now) - since_ns) * rate

    def _switch(self) -> None:
        switched, self._switched = self._switched, self._env.event()
        switched.succeed()

    def _bytes_per_s(self, way: Way) -> int:
        """Half of the joint bandwidth and what the other direction leaves of its half, within the own limit."""
        own, other = self._profile.h2d_bytes_per_s, self._profile.d2h_bytes_per_s
        if way is Way.TO_HOST:
            own, other = other, own
        if len(self._moving) == 1:
            return own
        half = self._profile.joint_bytes_per_s // 2
        left_over = self._profile.joint_bytes_per_s - other
        return min(own, half if other > half else left_over)
