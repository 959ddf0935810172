"""Figures in the papers' forms: bars by group, lines over x, distributions.

Every function writes a file; the suffix of its name chooses the format.
"""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from traces.plots.style import Line, legend_below, lines, panels, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_MARKERS = 30
"""Points of a line, up to which each is marked."""

MOST_UPRIGHT = 8
"""Groups of bars, up to which their names stand side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel of bars: for each group one bar a system.

    Attributes:
        values: by system, as many as groups.
    """

    title: str
    ylabel: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[float]]
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A panel of lines.

    Attributes:
        values: by system (x, y).
        levels: by name, level lines.
        steps: drawn as steps: a distribution.
        from_zero: the axis of y begins at 0.
    """

    title: str
    xlabel: str
    ylabel: str
    values: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    levels: Mapping[str, float] = field(default_factory=dict[str, float])
    log_x: bool = False
    log_y: bool = False
    steps: bool = False
    from_zero: bool = True


def draw(
    title: str,
    rows: Sequence[Sequence[Bars | Lines]],
    path: Path,
    *,
    panel_inches: tuple[float, float] = (3.4, 2.4),
) -> None:
    """Draw panels in rows; a system has one colour in all of them."""
    systems = lines([name for row in rows for panel in row for name in [*panel.values, *_levels(panel)]])
    with panels(len(rows), max(map(len, rows)), path, title, panel_inches=panel_inches) as (figure, axes):
        for ax_row, row in zip(axes, rows, strict=True):
            for ax, panel in zip(ax_row, row, strict=False):
                ax.set(title=panel.title, ylabel=panel.ylabel)
                if isinstance(panel, Bars):
                    _draw_bars(ax, panel, systems)
                else:
                    _draw_lines(ax, panel, systems)
            for ax in ax_row[len(row) :]:
                ax.set_visible(False)
        legend_below(figure, systems)


def _draw_bars(ax: Axes, panel: Bars, systems: Mapping[str, Line]) -> None:
    width = 0.8 / len(panel.values)
    for nth, (name, values) in enumerate(panel.values.items()):
        at = np.arange(len(values)) + (nth - (len(panel.values) - 1) / 2) * width
        ax.bar(at, values, width, color=systems[name].colour)
    if len(panel.groups) > MOST_UPRIGHT:
        names = [name.replace("\n", " ") for name in panel.groups]
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
    else:
        ax.set_xticks(range(len(panel.groups)), panel.groups)
    ax.grid(visible=False, axis="x")
    if panel.log and any(value > 0 for values in panel.values.values() for value in values):  # none finished: no value
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)


def _draw_lines(ax: Axes, panel: Lines, systems: Mapping[str, Line]) -> None:
    for name, (xs, ys) in panel.values.items():
        line = systems[name]
        if panel.steps:
            ax.step(xs, ys, line.dashes, where="post", color=line.colour)
        else:
            marker = "o" if len(xs) <= MOST_MARKERS else ""
            ax.plot(xs, ys, line.dashes, color=line.colour, marker=marker, markersize=4)
    for name, level in panel.levels.items():
        ax.axhline(level, color=systems[name].colour, linestyle=systems[name].dashes)
    ax.set_xlabel(panel.xlabel)
    if panel.log_x:
        ax.set_xscale("log")
        plain_ticks(ax.xaxis)
    if panel.log_y:
        ax.set_yscale("log")
        plain_ticks(ax.yaxis)
    elif panel.from_zero and not panel.steps:
        ax.set_ylim(0, None)


def _levels(panel: Bars | Lines) -> Sequence[str]:
    return [*panel.levels] if isinstance(panel, Lines) else []
