"""How every figure looks: one grid of panels, one colour and dash a system, one legend below."""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STYLE: Mapping[str, Any] = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}

# Okabe and Ito's palette, told apart with any colour vision. Source: jfly.uni-koeln.de/color.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)


Dashes = Literal["-", "--", "-.", ":"]


@dataclass(frozen=True, slots=True)
class Line:
    """How one system is drawn."""

    colour: str
    dashes: Dashes


def lines(systems: Sequence[str]) -> dict[str, Line]:
    """Give each system its line, in order of appearance."""
    colours = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
    dashes: tuple[Dashes, ...] = ("-", "--", "-.", ":")
    return {
        system: Line(colours[index % len(colours)], dashes[index % len(dashes)])
        for index, system in enumerate(dict.fromkeys(systems))
    }


@contextmanager
def panels(
    n_rows: int,
    n_columns: int,
    path: Path,
    title: str,
    *,
    panel_inches: tuple[float, float] = (3.4, 2.4),
    share_x: Literal["none", "col"] = "none",
) -> Generator[tuple[Figure, Any]]:
    """Give a figure and its (n_rows, n_columns) axes; it is written when the block ends.

    It needs neither pyplot, which keeps every figure alive, nor a display.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = dict(STYLE)
    with rc_context(style):
        figure = Figure(figsize=(panel_inches[0] * n_columns, panel_inches[1] * n_rows + 0.8))
        axes = figure.subplots(n_rows, n_columns, squeeze=False, sharex=share_x)
        figure.suptitle(title, fontsize=10)
        yield figure, axes
        figure.savefig(path)


def legend_below(figure: Figure, systems: Mapping[str, Line], others: Sequence[Artist] = ()) -> None:
    """Name the systems below the panels, then the others."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=line.colour, linestyle=line.dashes, label=system) for system, line in systems.items()
    ]
    figure.legend(handles=[*handles, *others], loc="outside lower center", ncols=5)


def plain_ticks(axis: Axis) -> None:
    """Write 0.5 or 20 along a logarithmic axis, every 1, 2 and 5 where there is room."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    least, most = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if most <= 100 * least else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
