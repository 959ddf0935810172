"""Time as the executor sees it: nanoseconds of the host since the run began, and how to let them pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

POLL_S = 20e-6
"""Between two looks at the device while it is not known which of several things happens first."""


class Awaited(Protocol):
    """Something that the device is at work on."""

    def is_done(self) -> bool:
        """Whether it is done."""
        ...

    def wait(self) -> None:
        """Wait until it is."""
        ...


class Clock(Protocol):
    """The time of a run."""

    @property
    def now_ns(self) -> int:
        """Time since the run began, never decreasing."""
        ...

    def wait(self, awaited: Sequence[Awaited], until_ns: int | None) -> None:
        """Let time pass until one of these is done, or until then."""
        ...


class HostClock:
    """The monotonic clock of the host, which starts at 0 when it is first read."""

    def __init__(self) -> None:
        self._began_ns: int | None = None

    @property
    def now_ns(self) -> int:
        """Time since the first reading."""
        read_ns = time.monotonic_ns()
        if self._began_ns is None:
            self._began_ns = read_ns
        return read_ns - self._began_ns

    def wait(self, awaited: Sequence[Awaited], until_ns: int | None) -> None:
        """Sleep; for a single thing without a bound the driver wakes the host."""
        if until_ns is None and len(awaited) == 1:
            awaited[0].wait()
            return
        while not any(each.is_done() for each in awaited):
            left_s = POLL_S if until_ns is None else (until_ns - self.now_ns) / 1e9
            if left_s <= 0:
                return
            time.sleep(min(left_s, POLL_S) if awaited else left_s)
