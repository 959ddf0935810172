"""When the requests of a trace arrive: rate, spread of gaps, dispersion of counts, ties and idle times."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, sqrt

from policies.types import NS_PER_S

WINDOWS_S = (1, 10, 60)
LONG_GAP_NS = 60 * NS_PER_S


@dataclass(slots=True)
class _Windows:
    """Counts of arrivals in windows that follow one another from the first arrival."""

    window_ns: int
    now: int = 0
    n_now: int = 0
    n_all: int = 0
    n_squares: int = 0
    n_empty: int = 0
    most: int = 0

    def add(self, since_ns: int) -> None:
        window = since_ns // self.window_ns
        if window != self.now:
            self._end()
            self.n_empty += window - self.now - 1
            self.now, self.n_now = window, 0
        self.n_now += 1
        self.most = max(self.most, self.n_now)

    def _end(self) -> None:
        self.n_all += self.n_now
        self.n_squares += self.n_now**2
        self.n_empty += self.n_now == 0

    @property
    def dispersion(self) -> float | None:
        """Variance over mean of the counts of whole windows; ``None`` for fewer than two, or without arrivals."""
        n = self.now  # the last window is not whole
        if n < 2 or self.n_all == 0:
            return None
        variance = (self.n_squares - self.n_all**2 / n) / (n - 1)
        return variance * n / self.n_all


@dataclass(slots=True)
class ArrivalStatistics:
    """Arrivals in order of time, one after another.

    Attributes:
        grid_ns: the longest duration of which all gaps are multiples.
        apart_ns: the shortest gap between two times that differ.
    """

    n: int = 0
    first_ns: int = 0
    last_ns: int = 0
    gap_squares: int = 0
    n_ties: int = 0
    n_long: int = 0
    longest_ns: int = 0
    shortest_ns: int | None = None
    apart_ns: int = 0
    grid_ns: int = 0
    windows: list[_Windows] = field(default_factory=lambda: [_Windows(w * NS_PER_S) for w in WINDOWS_S])

    def add(self, time_ns: int) -> int:
        """Take the next arrival; returns the gap before it in ns."""
        if self.n == 0:
            self.first_ns = self.last_ns = time_ns
            gap_ns = 0
        else:
            gap_ns = time_ns - self.last_ns
            self.gap_squares += gap_ns**2
            self.n_ties += gap_ns == 0
            self.n_long += gap_ns > LONG_GAP_NS
            self.longest_ns = max(self.longest_ns, gap_ns)
            self.shortest_ns = gap_ns if self.shortest_ns is None else min(self.shortest_ns, gap_ns)
            self.grid_ns = gcd(self.grid_ns, gap_ns)
            self.apart_ns = min(self.apart_ns or gap_ns, gap_ns or self.apart_ns)
        self.n += 1
        self.last_ns = time_ns
        for windows in self.windows:
            windows.add(time_ns - self.first_ns)
        return gap_ns

    @property
    def span_ns(self) -> int:
        """From the first arrival to the last."""
        return self.last_ns - self.first_ns

    @property
    def are_even(self) -> bool:
        """All gaps are alike, and there are enough of them to say so."""
        return self.n > 10 and self.shortest_ns == self.longest_ns and self.longest_ns > 0

    def summary(self) -> dict[str, object]:
        """The figures, by name."""
        span_s = self.span_ns / NS_PER_S
        n_gaps = max(self.n - 1, 1)
        mean_ns = self.span_ns / n_gaps
        cv = sqrt(max(self.gap_squares / n_gaps - mean_ns**2, 0.0)) / mean_ns if mean_ns else None
        seconds = self.windows[0]
        return {
            "span_s": span_s,
            "rate_per_s": self.n / span_s if span_s else None,
            "gap_cv": cv,
            **{f"idc_{window_s}s": w.dispersion for window_s, w in zip(WINDOWS_S, self.windows, strict=True)},
            "most_in_1s": seconds.most,
            "empty_seconds_share": seconds.n_empty / seconds.now if seconds.now else None,
            "ties": self.n_ties,
            "distinct_times": self.n - self.n_ties,
            "grid_s": self.grid_ns / NS_PER_S,
            "times_apart_s": self.apart_ns / NS_PER_S,
            "gaps_above_60s": self.n_long,
            "longest_gap_s": self.longest_ns / NS_PER_S,
        }
