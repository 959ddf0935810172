"""The figure of how latencies are distributed, system beside system.

It writes a file; the suffix of its name chooses the format.
"""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from policies.types import NS_PER_S
from traces.plots.style import Line, legend_below, lines, panels, plain_ticks
from traces.results.folder import RunTables
from traces.results.metrics import quantiles
from traces.results.tables import ints, present, where

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

MARKS = (("o", 500, "P50"), ("s", 990, "P99"))
"""Quantiles that are marked: the mark, thousandths, the name."""

_LEAST_SHARE = 1e-4
_MOST_POINTS = 2000


def latencies(runs: Sequence[RunTables], path: Path) -> None:
    """Draw which share of requests or gaps is at least as long as x: TTFT, mean gap of a request, all gaps.

    A row for each arrival rate, a line for each system, P50 and P99 marked. Both axes are
    logarithmic, so that the slowest percent is as tall as the next slowest ten.

    Args:
        runs: of one mix and lengths, one for each system and rate.
        path: of the figure.
    """
    from matplotlib.lines import Line2D

    by_rate: dict[float | None, list[RunTables]] = {}
    for run in sorted(runs, key=lambda run: run.info.rate_per_s or 0):
        by_rate.setdefault(run.info.rate_per_s, []).append(run)
    systems = lines([run.info.label for run in runs])
    title = f"{runs[0].info.mix}, {runs[0].info.workload}"
    with panels(len(by_rate), len(LATENCIES), path, title, share_x="col") as (figure, axes):
        for row, group in zip(axes, by_rate.values(), strict=True):
            for ax, latency in zip(row, LATENCIES, strict=True):
                for run in group:
                    draw_tail(ax, *latency.of(run), latency.unit_ns, systems[run.info.label])
                ax.set(xscale="log", title=group[0].info.rate, xlabel=latency.label)
            label_shares(row)
        for ax in axes[0]:
            plain_ticks(ax.xaxis)
        marks = [Line2D([], [], color="#555555", marker=mark, linestyle="", label=name) for mark, _, name in MARKS]
        legend_below(figure, systems, marks)


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency that is drawn, and how its values are found."""

    label: str
    unit_ns: int
    of: Callable[[RunTables], tuple[Ints, Ints]]
    """(values in ns, how often each occurred)."""


def _ttft(run: RunTables) -> tuple[Ints, Ints]:
    finished = where(run.requests, "outcome", ["finished"])
    ttft = ints(finished, "first_token_ns") - ints(finished, "arrival_ns")
    return ttft, np.ones_like(ttft)


def _mean_gap(run: RunTables) -> tuple[Ints, Ints]:
    mean_gap = ints(present(where(run.requests, "outcome", ["finished"]), "mean_gap_ns"), "mean_gap_ns")
    return mean_gap, np.ones_like(mean_gap)


def _gap(run: RunTables) -> tuple[Ints, Ints]:
    return ints(run.gaps, "gap_ns"), ints(run.gaps, "n")


LATENCIES = (
    Latency("TTFT (s)", NS_PER_S, _ttft),
    Latency("TBT: mean gap of a request (ms)", NS_PER_S // 1000, _mean_gap),
    Latency("TBT: every gap (ms)", NS_PER_S // 1000, _gap),
)


def draw_tail(ax: Axes, values_ns: Ints, counts: Ints, unit_ns: int, line: Line) -> None:
    """Draw which share of the values is at least as long as x."""
    if not counts.sum():
        return
    order = np.argsort(values_ns, kind="stable")
    reached = np.cumsum(counts[order])
    at_least = 1 - (reached - counts[order]) / reached[-1]
    shown = _thinned(at_least)
    ax.step(values_ns[order][shown] / unit_ns, at_least[shown], line.dashes, where="pre", color=line.colour)
    for mark, per_mille, _ in MARKS:
        (at_ns,) = quantiles(values_ns, counts, (per_mille,))
        ax.plot(at_ns / unit_ns, 1 - per_mille / 1000, mark, color=line.colour, markersize=5, markeredgecolor="white")


def _thinned(at_least: Floats) -> Ints:
    """Indices of points evenly spread over the logarithm of the share, down to the least that is drawn."""
    drawn = at_least[at_least >= _LEAST_SHARE]
    bins = np.floor(np.log10(drawn) * _MOST_POINTS / np.log10(_LEAST_SHARE))
    return np.append(np.unique(bins, return_index=True)[1], len(drawn) - 1)


def label_shares(row: Sequence[Axes]) -> None:
    """Write shares along the vertical axes of a row of panels."""
    for column, ax in enumerate(row):
        ax.set(yscale="log", ylim=(_LEAST_SHARE, 1.3))
        ax.set_yticks([1, 0.1, 0.01, 0.001, 0.0001], ["100 %", "10 %", "1 %", "0.1 %", "0.01 %"])
        ax.tick_params(labelleft=column == 0)
    row[0].set_ylabel("at least as long")
