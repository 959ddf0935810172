"""What computes and what copies, and how one waits for the other: a Protocol, and a CPU that does all at once.

Work is asked for on a compute stream, where everything runs in order, and on links that
copy beside it. A *mark* is a point on one of them. Nothing here waits for the device but
``wait``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Protocol, TypeVar

from torch import Tensor

Mark = TypeVar("Mark")
"""A point on a stream: reached when all that was asked of the stream before is done."""


class Streams(Protocol[Mark]):
    """One compute stream, and links to and from host memory."""

    def computing(self) -> AbstractContextManager[object]:
        """Within it, what torch is asked to do goes to the compute stream."""
        ...

    def mark(self) -> Mark:
        """The present end of the compute stream."""
        ...

    def fetch(self, to: Tensor, source: Tensor, after: Mark | None = None) -> Mark:
        """Copy from pinned host memory beside the computation, behind earlier fetches and ``after``."""
        ...

    def save(self, to: Tensor, source: Tensor, after: Mark | None = None) -> Mark:
        """Copy to pinned host memory beside the computation, behind earlier saves and ``after``."""
        ...

    def hold(self, until: Mark) -> None:
        """Let what is asked of the compute stream from now on wait for a mark; the wait is a stall."""
        ...

    def take_stalls(self) -> list[tuple[Mark, Mark]]:
        """Stalls since this was last called: from when the computation could have gone on to when it did."""
        ...

    def is_reached(self, mark: Mark) -> bool:
        """Whether a mark has been reached, as far as is known without waiting."""
        ...

    def wait(self, mark: Mark) -> None:
        """Let the host wait for a mark."""
        ...

    def between_ns(self, first: Mark, second: Mark) -> int:
        """Time between two marks of the compute stream that have been reached."""
        ...


class HostStreams:
    """A CPU: everything is done when a call returns. What is copied meanwhile keeps the computation waiting."""

    def __init__(self) -> None:
        self._stalls: list[tuple[int, int]] = []

    def computing(self) -> AbstractContextManager[object]:
        """Everything goes to the only place there is."""
        return nullcontext()

    def mark(self) -> int:
        """Now."""
        return perf_counter_ns()

    def fetch(self, to: Tensor, source: Tensor, after: int | None = None) -> int:  # noqa: ARG002 - all before is done
        """Copy now."""
        began = perf_counter_ns()
        to.copy_(source)
        ended = perf_counter_ns()
        self._stalls.append((began, ended))
        return ended

    def save(self, to: Tensor, source: Tensor, after: int | None = None) -> int:
        """Copy now."""
        return self.fetch(to, source, after)

    def hold(self, until: int) -> None:
        """It has been reached."""

    def take_stalls(self) -> list[tuple[int, int]]:
        """Begin and end of each copy."""
        stalls, self._stalls = self._stalls, []
        return stalls

    def is_reached(self, mark: int) -> bool:  # noqa: ARG002
        """It has."""
        return True

    def wait(self, mark: int) -> None:
        """It has been reached."""

    def between_ns(self, first: int, second: int) -> int:
        """The difference."""
        return second - first
