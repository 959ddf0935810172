"""A GPU and a link that lanes share as fluids, as SimPy processes: what ``sim/side_by_side`` is held against.

Speeds are worked out here by asking which speed all can have, in fractions, and time stays whole nanoseconds. A lane
plugs into ``EventPipeline`` in place of a wire.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from simpy import Environment, Event, Resource

from policies.types import NS_PER_S, LinkProfile
from sim.wire import Way

Demands = Mapping[int, tuple[Fraction, Fraction]]
"""By lane: for which shares of its time alone a computation uses SMs and HBM."""


def fair_speeds(demands: Demands) -> dict[int, Fraction]:
    """Raise all speeds together; where a resource is full, those that use it stay behind."""
    speeds: dict[int, Fraction] = dict.fromkeys(demands, Fraction(0))
    rising: set[int] = set(demands)
    while rising:
        steps = [1 - max(speeds[lane] for lane in rising)]
        none = Fraction(0)
        used = [sum((speeds[lane] * demands[lane][resource] for lane in demands), none) for resource in (0, 1)]
        spare = [1 - each for each in used]
        wanted = [sum((demands[lane][resource] for lane in rising), none) for resource in (0, 1)]
        steps += [spare[resource] / wanted[resource] for resource in (0, 1) if wanted[resource]]
        rise = min(steps)
        for lane in rising:
            speeds[lane] += rise
        full = [resource for resource in (0, 1) if wanted[resource] and rise * wanted[resource] == spare[resource]]
        rising = {lane for lane in rising if speeds[lane] < 1 and not any(demands[lane][resource] for resource in full)}
    return speeds


class SharedGpu:
    """What lanes share.

    Args:
        interference: share by which a computation takes longer beside another.
    """

    def __init__(self, env: Environment, profile: LinkProfile, interference: Fraction) -> None:
        self.env = env
        self._profile = profile
        self._interference = interference
        self.computing: dict[int, tuple[Fraction, Fraction]] = {}
        self.moving: dict[Way, set[int]] = {way: set() for way in Way}
        self.switched = env.event()

    def switch(self) -> None:
        """Something began or ended: all look again how fast they go."""
        switched, self.switched = self.switched, self.env.event()
        switched.succeed()

    def speed(self, lane: int) -> Fraction:
        """Of a lane that computes, 1 alone."""
        speed = fair_speeds(self.computing)[lane]
        return speed / (1 + self._interference) if len(self.computing) > 1 else speed

    def bytes_per_s(self, way: Way) -> Fraction:
        """Of each lane that copies in that direction."""
        own, other = self._profile.h2d_bytes_per_s, self._profile.d2h_bytes_per_s
        if way is Way.TO_HOST:
            own, other = other, own
        if all(self.moving.values()):
            joint = self._profile.joint_bytes_per_s
            own = min(own, max(joint // 2, joint - other))
        return Fraction(own, len(self.moving[way]))


class LaneWire:
    """One lane's way to GPU and link."""

    def __init__(self, gpu: SharedGpu, lane: int) -> None:
        self.demand = Fraction(1), Fraction(1)
        self._gpu, self._lane = gpu, lane
        self._turns = {way: Resource(gpu.env) for way in Way}

    def copy(self, way: Way, n_bytes: int) -> Generator[Event, Any, None]:
        """Wait for the lane's turn, then move the bytes."""
        gpu = self._gpu
        turn = self._turns[way].request()
        yield turn
        gpu.moving[way].add(self._lane)
        gpu.switch()
        left = Fraction(n_bytes * NS_PER_S)
        while left > 0:
            left -= yield from self._progress(left, gpu.bytes_per_s(way))
        gpu.moving[way].discard(self._lane)
        gpu.switch()
        self._turns[way].release(turn)

    def compute(self, work_ns: int) -> Generator[Event, Any, None]:
        """Compute for ``work_ns``, longer beside others."""
        gpu, left = self._gpu, Fraction(work_ns)
        if left:
            gpu.computing[self._lane] = self.demand
            gpu.switch()
            while left > 0:
                left -= yield from self._progress(left, gpu.speed(self._lane))
            del gpu.computing[self._lane]
            gpu.switch()

    def _progress(self, left: Fraction, rate: Fraction) -> Generator[Event, Any, Fraction]:
        since_ns = int(self._gpu.env.now)
        yield self._gpu.env.timeout(ceil(left / rate)) | self._gpu.switched
        return (int(self._gpu.env.now) - since_ns) * rate
