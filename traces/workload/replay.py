"""A window of a trace file, measured in one pass and replayed in another: bounded memory, whatever its size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policies.types import NS_PER_S
from traces.formats import OutOfOrderError, TraceRow, assumed_unit, read_trace
from traces.workload.arrivals import busiest_window


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The requests of a trace that arrive in [start, start + duration) of its own time.

    Attributes:
        n_rows: rows in the window.
        n_failed: of these, failed ones: they are not replayed and do not count in the rate.
        time_unit: of times that are numbers, if the user says so.
        assumed_unit: of times that are numbers, where nothing but the format says so.
        is_sorted: the file is in order of time; else it is sorted each time it is read, on disk if it is long.
    """

    path: Path
    time_unit: str | None
    assumed_unit: str | None = None
    is_sorted: bool
    start_ns: int
    duration_ns: int
    n_rows: int
    n_failed: int

    @property
    def mean_rate_per_s(self) -> float:
        """Requests/s over the window."""
        return (self.n_rows - self.n_failed) * NS_PER_S / self.duration_ns

    @property
    def label(self) -> str:
        """What is replayed, for a person."""
        start_s, duration_s = self.start_ns / NS_PER_S, self.duration_ns / NS_PER_S
        unit = "" if self.assumed_unit is None else f", times taken as {self.assumed_unit}"
        return (
            f"{self.path.name} from {start_s:.1f} s for {duration_s:.1f} s: {self.n_rows - self.n_failed} requests, "
            f"{self.n_failed} failed rows left out{'' if self.is_sorted else ', sorted by time'}{unit}"
        )

    def arrivals(self, rng: np.random.Generator, phase: float = 0.0) -> Iterator[tuple[int, TraceRow]]:
        """Read (ns from the start of the window, row) in order of time; nothing is drawn.

        Args:
            rng: not used, a file is not random.
            phase: 0..1, the part of the window that is moved from its front to its end,
                so that several replays of one window do not burst together.
        """
        del rng
        turn_ns = self.start_ns + int(phase * self.duration_ns)
        end_ns = self.start_ns + self.duration_ns
        for row in self._served(turn_ns, end_ns):
            yield row.arrival_ns - turn_ns, row
        for row in self._served(self.start_ns, turn_ns):
            yield row.arrival_ns - self.start_ns + end_ns - turn_ns, row

    def _served(self, from_ns: int, until_ns: int) -> Iterator[TraceRow]:
        for row in read_trace(self.path, time_unit=self.time_unit, sort=not self.is_sorted):
            if row.arrival_ns >= until_ns:
                return
            if row.arrival_ns >= from_ns and not row.is_failed:
                yield row


def measure(
    path: Path,
    *,
    time_unit: str | None = None,
    start_s: float = 0.0,
    duration_s: float | None = None,
    busiest: bool = False,
) -> Replay:
    """Find a window of a trace and count what is in it.

    A trace that is not in order of time is sorted first. If it is in order up to the end of the window, what follows
    is not looked at.

    Args:
        time_unit: of times that are numbers; ``None``: as the file shows.
        start_s: in the trace's own time, from its first row.
        duration_s: ``None`` for the rest of the trace, its last row included.
        busiest: take the window of ``duration_s`` with most rows instead of the one at ``start_s``.

    Raises:
        ValueError: a faulty row up to the end of the window, a window past the end of
            the trace, or one without a rate: no request, or all at one instant.
    """
    if busiest and duration_s is None:
        raise ValueError("the busiest window needs a duration; set window_s")
    start_ns = round(start_s * NS_PER_S)
    duration_ns = None if duration_s is None else round(duration_s * NS_PER_S)
    try:
        return _measured(path, time_unit, start_ns, duration_ns, busiest, is_sorted=True)
    except OutOfOrderError:
        return _measured(path, time_unit, start_ns, duration_ns, busiest, is_sorted=False)


def _measured(
    path: Path, time_unit: str | None, start_ns: int, duration_ns: int | None, busiest: bool, *, is_sorted: bool
) -> Replay:
    def rows() -> Iterator[TraceRow]:
        return read_trace(path, time_unit=time_unit, sort=not is_sorted)

    if busiest and duration_ns is not None:
        start_ns, _ = busiest_window((row.arrival_ns for row in rows()), duration_ns)
    last_ns = n_rows = n_failed = 0
    for row in rows():
        last_ns = row.arrival_ns
        if duration_ns is not None and last_ns >= start_ns + duration_ns:
            break
        if last_ns >= start_ns:
            n_rows += 1
            n_failed += row.is_failed
    rest_ns = last_ns + 1 - start_ns  # a window is half open: 1 ns takes the last row in
    if rest_ns < 1 or (duration_ns is not None and rest_ns < duration_ns):
        duration = "" if duration_ns is None else f" of {duration_ns / NS_PER_S} s"
        raise ValueError(
            f"{path}: a window{duration} from {start_ns / NS_PER_S} s passes the last row, which is "
            f"{last_ns / NS_PER_S} s after the first; begin earlier or shorten it"
        )
    duration_ns = rest_ns if duration_ns is None else duration_ns
    if n_rows == n_failed or duration_ns <= 1:
        raise ValueError(
            f"{path}: {n_rows - n_failed} requests in {duration_ns / NS_PER_S} s from {start_ns / NS_PER_S} s have no "
            "rate; take another window or a longer trace"
        )
    return Replay(
        path=path,
        time_unit=time_unit,
        assumed_unit=assumed_unit(path, time_unit),
        is_sorted=is_sorted,
        start_ns=start_ns,
        duration_ns=duration_ns,
        n_rows=n_rows,
        n_failed=n_failed,
    )
