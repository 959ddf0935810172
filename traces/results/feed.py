"""What is told of a table, on its way to a thread that writes it while the run goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

from traces.results.tables import TableWriter

if TYPE_CHECKING:
    from traces.results.arrays import Values

MOST_WAITING = 4
"""Bounds what waits in memory for the disk."""

Told = TypeVar("Told", bound=Sized)


class Worker:
    """Carries out tasks in the order in which they are given, in a thread of its own.

    An error of a task comes out of one of the next calls; what was given after that task is not done.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()
        self._has_failed = False

    def do(self, task: Callable[[], None]) -> None:
        """Have a task done; wait while too many are waiting."""
        self._wait(MOST_WAITING - 1)
        self._waiting.append(self._executor.submit(self._try, task))

    def catch_up(self) -> None:
        """Wait until all that was given is done."""
        self._wait(0)

    def stop(self) -> None:
        """End the thread once all that was given is done."""
        self._executor.shutdown()
        self._wait(0)

    def _wait(self, most_waiting: int) -> None:
        while self._waiting and (len(self._waiting) > most_waiting or self._waiting[0].done()):
            self._waiting.popleft().result()

    def _try(self, task: Callable[[], None]) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        task()
        self._has_failed = False


class Feed(Generic[Told]):
    """Collects what is told of one table, and hands it over when there is enough of it.

    Args:
        table: used by the worker's thread alone.
        new: makes what facts are added to.
        columns_of: makes columns of it, in the order of the table.

    Attributes:
        told: since the last time; callers add to it.
    """

    __slots__ = ("_columns_of", "_new", "_table", "_worker", "told")

    def __init__(
        self, table: TableWriter, worker: Worker, new: Callable[[], Told], columns_of: Callable[[Told], list[Values]]
    ) -> None:
        self._table = table
        self._worker = worker
        self._new = new
        self._columns_of = columns_of
        self.told = new()

    def hand_over(self) -> None:
        """Have written what was told."""
        told, self.told = self.told, self._new()
        if len(told):
            self._worker.do(lambda: self._table.extend(self._columns_of(told)))

    def close(self) -> None:
        """Have written what was told, and the table ended."""
        self.hand_over()
        self._worker.do(self._table.close)
