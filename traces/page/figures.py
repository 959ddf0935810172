"""The figures of a page: latencies, requests in the system and HBM by owner of one workload; figures against a rate."""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from policies.types import NS_PER_S
from traces.claims import Result
from traces.page.svg import svg_of
from traces.plots.hbm import draw_uses, means
from traces.plots.latencies import LATENCIES, MARKS, Latency, draw_tail, label_shares
from traces.plots.style import Line, plain_ticks
from traces.plots.sweep import PANELS, Axis, Panel, draw_panel
from traces.report import number
from traces.results.folder import RunTables
from traces.results.metrics import quantiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from matplotlib.axes import Axes

    Ints = npt.NDArray[np.int64]

MOST_POINTS = 400
"""Of a series over time: a figure on a page is about as many pixels wide. Of more, means over equal spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, and what stands below it."""

    svg: str
    caption: str


def latency_figures(runs: Sequence[RunTables], lines: Mapping[str, Line], key: str) -> Iterator[Figure]:
    """Draw how latencies are distributed in runs of one workload, a figure a latency."""
    for index, latency in enumerate(LATENCIES):
        found = [(run.info.label, *latency.of(run)) for run in runs]

        def draw(ax: Axes, latency: Latency = latency, found: Sequence[tuple[str, Ints, Ints]] = found) -> None:
            for label, values, counts in found:
                draw_tail(ax, values, counts, latency.unit_ns, lines[label])
            ax.set(xscale="log", xlabel=latency.label)
            plain_ticks(ax.xaxis)
            label_shares([ax])

        title = f"{latency.label}: share of values at least as long; {_quantiles_in_words(latency, found)}"
        marks = ", ".join(f"{ {'o': 'circle', 's': 'square'}[mark] }: {name}" for mark, _, name in MARKS)
        yield Figure(svg=svg_of(draw, key=f"{key}-latency{index}", title=title), caption=f"{latency.label} ({marks})")


def live_requests(runs: Sequence[RunTables], lines: Mapping[str, Line], key: str) -> Figure:
    """Draw how many requests had arrived and not yet finished, over time."""

    def draw(ax: Axes) -> None:
        for run in runs:
            times_s, n = _live(run)
            line = lines[run.info.label]
            ax.plot(times_s, n, line.dashes, color=line.colour, drawstyle="steps-post")
        ax.set(xlabel="time (s)", ylabel="requests")
        ax.set_ylim(bottom=0)

    most = "; ".join(f"{run.info.label} at most {_live(run)[1].max(initial=0):.0f}" for run in runs)
    title = f"Requests in the system over time: {most}"
    return Figure(svg=svg_of(draw, key=f"{key}-live", title=title), caption="Requests that wait or run")


def hbm_figure(run: RunTables, key: str) -> Figure:
    """Draw who holds HBM over time in a run that has kept its memory table."""
    peak = run.columns("memory", ("lent_bytes",))["lent_bytes"].max(initial=0)
    title = f"HBM by owner over time, {run.info.label}; one model lent at most {peak / 2**30:.2f} GiB at a time"
    draw = partial(draw_uses, run=run, most_points=MOST_POINTS, names_inside=True)

    def with_times(ax: Axes) -> None:
        draw(ax)
        ax.set_xlabel("time (s)")

    return Figure(svg=svg_of(with_times, key=f"{key}-hbm", title=title), caption=run.info.label)


def against(results: Sequence[Result], axis: Axis, lines: Mapping[str, Line], key: str) -> Iterator[Figure]:
    """Draw the figures of merit of one workload against what was varied."""
    for index, panel in enumerate(PANELS):

        def draw(ax: Axes, panel: Panel = panel) -> None:
            draw_panel(ax, results, axis, panel, lines)

        caption = f"{panel.label.replace(chr(10), ' ')} against {axis.label}"
        yield Figure(svg=svg_of(draw, key=f"{key}-against{index}", title=caption), caption=caption)


def _quantiles_in_words(latency: Latency, found: Sequence[tuple[str, Ints, Ints]]) -> str:
    said: list[str] = []
    for label, values, counts in found:
        if counts.sum():
            marked = zip(MARKS, quantiles(values, counts, tuple(mark[1] for mark in MARKS)), strict=True)
            said.append(f"{label} " + ", ".join(f"{mark[2]} {number(at / latency.unit_ns)}" for mark, at in marked))
        else:
            said.append(f"{label} none")
    return "; ".join(said)


def _live(run: RunTables) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(seconds, requests that have arrived and not finished); means over equal spans where there are many."""
    requests = run.columns("requests", ("arrival_ns", "finish_ns", "outcome"))
    served = requests["outcome"] != "dropped"
    finished = requests["outcome"] == "finished"
    at_ns: Ints = np.concatenate([requests["arrival_ns"][served], requests["finish_ns"][finished]])
    steps = np.concatenate([np.ones(served.sum()), -np.ones(finished.sum())])
    order = np.argsort(at_ns, kind="stable")
    at_ns, n = at_ns[order], np.cumsum(steps[order])
    if len(at_ns) > 2 * MOST_POINTS:
        edges_ns = np.linspace(at_ns[0], at_ns[-1], MOST_POINTS + 1, dtype=np.int64)
        return edges_ns[:-1] / NS_PER_S, means(at_ns, n, edges_ns)
    return at_ns / NS_PER_S, n
