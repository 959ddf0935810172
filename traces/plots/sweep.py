"""Figures of merit against what was varied: the arrival rate, or one setting that is a number.

Every function writes a file; the suffix of its name chooses the format.
"""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from traces.claims import METRICS, TBT_P99, Result
from traces.plots.style import Line, legend_below, lines, panels, plain_ticks
from traces.results.folder import RunInfo
from traces.results.grid import short_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_RATIO = 20
"""Values of a setting this far apart are shown along a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure of merit: its name in ``METRICS``, and how it is drawn."""

    metric: str
    label: str
    unit: float
    scale: str


# As in MIRAGE's figure 8.
PANELS = (
    Panel(TBT_P99, METRICS[TBT_P99].definition.replace(" of ", "\nof ") + " (ms)", 1e6, "linear"),
    Panel("ttft_p99", "P99 TTFT (s)", 1e9, "log"),
    Panel("output_tokens_per_s", "output tokens/s", 1, "linear"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is varied, and how runs are divided into rows of panels and into lines."""

    label: str
    of: Callable[[RunInfo], float | None]
    row: Callable[[RunInfo], str]
    line: Callable[[RunInfo], str]


def against_rate(results: Sequence[Result], path: Path) -> None:
    """Draw P99 TBT, P99 TTFT and throughput against the arrival rate, as MIRAGE's figure 8 does.

    A row for each workload, a line for each system; seeds are averaged.

    Args:
        results: each with a rate.
        path: of the figure.
    """
    _draw(results, along_rate(), path)


def against_setting(results: Sequence[Result], key: str, path: Path) -> None:
    """Draw the same against a setting of the grid.

    A row for each workload and rate, a line for each system; seeds are averaged. A system that
    the setting does not concern has one value for all of them.

    Args:
        results: of a grid.
        key: dotted; its values are numbers.
        path: of the figure.
    """
    _draw(results, along_setting(key), path)


def along_rate() -> Axis:
    """Vary the arrival rate."""
    return Axis(
        label="requests/s",
        of=lambda info: info.rate_per_s,
        row=lambda info: info.workload,
        line=lambda info: info.label,
    )


def along_setting(key: str) -> Axis:
    """Vary a setting of the grid, whose values are numbers."""

    def others(info: RunInfo) -> RunInfo:
        return replace(info, grid={name: value for name, value in info.grid.items() if name != key})

    def value(info: RunInfo) -> float | None:
        found = info.grid.get(key)
        return found if isinstance(found, int | float) else None

    return Axis(
        label=short_keys([key])[key],
        of=value,
        row=lambda info: f"{others(info).workload}, {info.rate}",
        line=lambda info: others(info).label,
    )


def rows_of(results: Sequence[Result], axis: Axis) -> dict[tuple[str, str], list[Result]]:
    """Divide runs by mix and by the axis's rows, in order of appearance."""
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        rows.setdefault((result.info.mix, axis.row(result.info)), []).append(result)
    return rows


def numeric_keys(results: Sequence[Result]) -> list[str]:
    """List the settings of the grid whose values are all numbers."""
    values: dict[str, list[object]] = {}
    for result in results:
        for key, value in result.info.grid.items():
            values.setdefault(key, []).append(value)
    return [key for key, found in values.items() if all(type(value) in (int, float) for value in found)]


def _draw(results: Sequence[Result], axis: Axis, path: Path) -> None:
    mixes = list(dict.fromkeys(result.info.mix for result in results))
    systems = lines([axis.line(result.info) for result in results])
    rows = rows_of(results, axis)
    with panels(len(rows), len(PANELS), path, ", ".join(mixes)) as (figure, axes):
        for ax_row, ((mix, name), in_row) in zip(axes, rows.items(), strict=True):
            for ax, panel in zip(ax_row, PANELS, strict=True):
                draw_panel(ax, in_row, axis, panel, systems)
                ax.set_title(name if len(mixes) == 1 else f"{mix}, {name}")
        legend_below(figure, systems)


def draw_panel(ax: Axes, in_row: Sequence[Result], axis: Axis, panel: Panel, systems: Mapping[str, Line]) -> None:
    """Draw one figure of merit of one row, a line for each system."""
    for system, line in systems.items():
        group = [result for result in in_row if axis.line(result.info) == system]
        _draw_line(ax, group, axis, panel, line)
    ax.set(xlabel=axis.label, ylabel=panel.label, yscale=panel.scale)
    _scale(ax, panel, [x for result in in_row if (x := axis.of(result.info)) is not None])


def _draw_line(ax: Axes, group: Sequence[Result], axis: Axis, panel: Panel, line: Line) -> None:
    """Draw mean values in order of x; a level line where there is no x."""
    found: dict[float | None, list[float]] = {}
    for result in group:
        value = METRICS[panel.metric].of(result.summary.total)
        if value is not None:
            found.setdefault(axis.of(result.info), []).append(value / panel.unit)
    means = {x: fmean(values) for x, values in found.items()}
    level = means.pop(None, None)
    if level is not None:
        ax.axhline(level, color=line.colour, linestyle=line.dashes)
    points = sorted((x, mean) for x, mean in means.items() if x is not None)
    ax.plot([x for x, _ in points], [y for _, y in points], line.dashes, color=line.colour, marker="o", markersize=4)


def _scale(ax: Axes, panel: Panel, xs: Sequence[float]) -> None:
    if xs and 0 < LOG_RATIO * min(xs) < max(xs):
        ax.set_xscale("log")
        plain_ticks(ax.xaxis)
    if panel.scale == "log":
        _at_least_a_decade(ax)
        plain_ticks(ax.yaxis)
    else:
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])


def _at_least_a_decade(ax: Axes) -> None:
    """Keep a logarithmic axis from blowing up differences that nobody would see."""
    least, most = ax.get_ylim()
    if most < 10 * least:
        middle = (least * most) ** 0.5
        ax.set_ylim(middle / 10**0.5, middle * 10**0.5)
