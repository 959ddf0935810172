"""How fast lanes compute that compute at once.

A computation alone takes all of its own time; of that it keeps the SMs busy for a share and HBM for another
(``Use``). Two ways of dividing a GPU:

- ``SharedDevice`` (MPS): all go equally fast until a resource is full; those that use it stay at that speed, the
  others go on rising, up to the speed that they have alone. So two that read weights take twice as long each, and
  one that reads beside one that multiplies costs neither anything. Ours: MPS promises less (its clients' thread
  blocks share SMs as they come). What is lost beyond that, in caches and schedulers, is one number.
- ``SlicedDevice`` (MIG): each as fast as it is on its slice, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Protocol

ONE: Final = 10**6
"""The speed of a computation alone; shares are counted in millionths, too."""


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of the time that a computation takes alone for which it keeps SMs and HBM busy, in millionths."""

    compute: int
    hbm: int


class Device(Protocol):
    """A GPU divided in some way."""

    def speeds(self, uses: Seq[Use]) -> list[int]:
        """How fast each of these computations goes while all of them run, in millionths of its speed alone."""
        ...


class SlicedDevice:
    """Lanes that have SMs and bandwidth of their own."""

    def speeds(self, uses: Seq[Use]) -> list[int]:
        """As fast as alone."""
        return [ONE] * len(uses)


class SharedDevice:
    """Lanes that share SMs and bandwidth.

    Args:
        interference_ppm: how much longer a computation takes beside another, besides.
    """

    def __init__(self, interference_ppm: int = 0) -> None:
        self._interfered = ONE + interference_ppm

    def speeds(self, uses: Seq[Use]) -> list[int]:
        """Max-min fair speeds: see above."""
        if len(uses) < 2:
            return [ONE] * len(uses)
        demands = [(use.compute, use.hbm) for use in uses]
        speeds, rising, full = [ONE] * len(uses), [*range(len(uses))], ONE * ONE
        left = [full, full]
        while rising:
            totals = [sum([demands[lane][resource] for lane in rising]) for resource in (0, 1)]
            common = [left[resource] // totals[resource] if totals[resource] else ONE for resource in (0, 1)]
            speed = min(ONE, *common)
            if speed == ONE:
                break
            scarce = [resource for resource in (0, 1) if common[resource] == speed]
            held = [lane for lane in rising if any(demands[lane][resource] for resource in scarce)]
            for lane in held:
                speeds[lane] = speed
                rising.remove(lane)
                left = [left[resource] - speed * demands[lane][resource] for resource in (0, 1)]
        return [speed * ONE // self._interfered for speed in speeds]
