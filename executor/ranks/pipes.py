"""The pipes between rank 0 and the others: who is silent for too long, or gone, is an error.

Pipes and not the process group: a rank that waits for a command waits as long as nobody sends a request, and
learns at once when the other end dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from executor.ranks.commands import Failed, Said, Told
from policies.errors import DeviceFailed

LOOK_AFTER_S = 2e-3
"""Between two looks at the other ranks while the device is waited for."""

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Leading:
    """Rank 0's ends, by rank from 1 on.

    Args:
        timeout_s: how long a rank may be silent when something is wanted of it.
        fate: says how a rank's process ended, if it did.
    """

    ends: Sequence[Connection]
    timeout_s: float
    fate: Callable[[int], str]

    def tell(self, told: Told) -> None:
        """Send something to all.

        Raises:
            DeviceFailed: a rank is gone.
        """
        for rank, end in enumerate(self.ends, 1):
            try:
                end.send(told)
            except OSError:
                self.look()
                raise self.lost(rank) from None

    def hear(self, kind: type[Kind], within_s: float | None = None) -> list[Kind]:
        """Wait until every rank has said something of a kind.

        Args:
            within_s: how long a rank may take; ``timeout_s`` by default.

        Raises:
            DeviceFailed: a rank is gone, has failed, or is silent.
        """
        patience_s = self.timeout_s if within_s is None else within_s
        return [cast("Kind", self._next(rank, kind, patience_s)) for rank in range(1, len(self.ends) + 1)]

    def look(self) -> None:
        """See whether all are still there while nothing is expected of them.

        Raises:
            DeviceFailed: a rank is gone or has failed.
        """
        for rank, end in enumerate(self.ends, 1):
            if end.poll():
                self._next(rank, Failed, 0)

    def lost(self, rank: int) -> DeviceFailed:
        """The error that a rank is gone."""
        return DeviceFailed(f"rank {rank} {self.fate(rank)}; the run cannot go on")

    def _next(self, rank: int, kind: type[object], within_s: float) -> Said:
        end = self.ends[rank - 1]
        if not end.poll(within_s):
            raise DeviceFailed(f"rank {rank} has been silent for {within_s:g} s; the run cannot go on")
        try:
            said: Said = end.recv()
        except (EOFError, OSError):
            raise self.lost(rank) from None
        if isinstance(said, Failed):
            raise DeviceFailed(f"rank {rank}: {said.why}")
        assert isinstance(said, kind), f"rank {rank} said {said}"
        return said


class Patience:
    """Looks after the other ranks while the own device, which may wait for them, is waited for."""

    def __init__(self, pipes: Leading) -> None:
        self._pipes = pipes
        self._since_s: float | None = None
        self._looked_s = 0.0

    def rewarded(self) -> None:
        """Something was reached."""
        self._since_s = None

    def tried(self) -> None:
        """Something is still waited for.

        Raises:
            DeviceFailed: a rank is gone, has failed, or does not come.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = self._looked_s = now_s
        if now_s - self._looked_s > LOOK_AFTER_S:
            self._looked_s = now_s
            self._pipes.look()
        if now_s - self._since_s > self._pipes.timeout_s:
            raise DeviceFailed(
                f"the device has not come on for {self._pipes.timeout_s:g} s: a rank is stuck; the run cannot go on"
            )


@dataclass(frozen=True, slots=True)
class Following:
    """The end of another rank."""

    end: Connection

    def hear(self) -> Told:
        """Wait for what rank 0 tells, for as long as it takes.

        Raises:
            EOFError: rank 0 is gone.
        """
        try:
            return self.end.recv()
        except OSError as gone:
            raise EOFError("rank 0 is gone") from gone

    def say(self, said: Said) -> None:
        """Answer.

        Raises:
            EOFError: rank 0 is gone.
        """
        try:
            self.end.send(said)
        except OSError as gone:
            raise EOFError("rank 0 is gone") from gone
