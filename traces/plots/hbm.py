"""The figure of who holds HBM over time: where the boundary between weights and KV cache was."""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.types import GIB, NS_PER_S
from traces.plots.style import BLUE, GREEN, PURPLE, SKY, VERMILION, panels
from traces.results.folder import RunTables
from traces.results.tables import ints, where

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from traces.results.tables import Frame

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

MOST_POINTS = 2000
"""Instants that a figure shows one by one; of more, means over as many equal spans."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A use of HBM, and its bytes from a model's memory columns and the bytes of one of its KV blocks.

    Attributes:
        hatch: what tells it from its neighbours without colours.
    """

    label: str
    colour: str
    of: Callable[[Mapping[str, Floats], int], Floats]
    hatch: str | None = None


# From the bottom: the homes of the layers, then the KV cache.
OWNERS = (
    Owner("weights at home", BLUE, lambda use, _: use["resident_bytes"]),
    Owner("slots", SKY, lambda use, _: use["slot_bytes"]),
    Owner("loading", PURPLE, lambda use, _: use["loading_bytes"]),
    Owner("lent to a KV cache", VERMILION, lambda use, _: use["lent_bytes"], "////"),
    Owner("own KV, used", GREEN, lambda use, block_bytes: use["n_base_used"] * block_bytes),
    Owner(
        "own KV, free", "#B9E3D5", lambda use, block_bytes: (use["n_base_blocks"] - use["n_base_used"]) * block_bytes
    ),
)
REST = Owner("activations, unassigned", "#EEEEEE", lambda use, _: np.zeros_like(use["lent_bytes"]))
"""What no model holds."""


def hbm(runs: Sequence[RunTables], path: Path) -> None:
    """Draw who holds HBM over time: a panel for each system, the uses of each model together.

    Args:
        runs: of one mix, lengths and rate.
        path: of the figure; its suffix chooses the format.

    Raises:
        ValueError: a run has no memory table.
    """
    from matplotlib.patches import Patch

    info = runs[0].info
    title = f"{info.mix}, {info.workload}, {info.rate}"
    with panels(len(runs), 1, path, title, panel_inches=(9.0, 2.9), share_x="col") as (figure, axes):
        for ax, run in zip(axes[:, 0], runs, strict=True):
            draw_uses(ax, run)
            ax.set_title(run.info.label, loc="left")
        axes[-1][0].set_xlabel("time (s)")
        handles = [
            Patch(facecolor=owner.colour, hatch=owner.hatch, edgecolor="white", linewidth=0, label=owner.label)
            for owner in (*OWNERS, REST)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)


def draw_uses(ax: Axes, run: RunTables, *, most_points: int = MOST_POINTS, names_inside: bool = False) -> None:
    """Draw who holds HBM over time in one run.

    Args:
        most_points: see ``MOST_POINTS``.
        names_inside: whether the models' names stand in their areas instead of beside them.

    Raises:
        ValueError: the run has no memory table.
    """
    if run.memory is None or not len(run.memory):
        raise ValueError(f"run of {run.info.system}: it kept no memory table; run it with that table to draw HBM")
    edges_ns, is_exact = spans(ints(run.memory, "at_ns"), most_points)
    times_s = edges_ns / NS_PER_S
    top = np.zeros(len(edges_ns))
    for index, model in enumerate(run.info.models):
        columns = held(where(run.memory, "model", [index]), edges_ns, is_exact=is_exact)
        bottom = top
        for owner in OWNERS:
            floor, top = top, top + owner.of(columns, model.block_bytes) / GIB
            _fill(ax, times_s, floor, top, owner)
        ax.step(times_s, top, where="post", color="black", linewidth=0.8)
        _name(ax, model.name, float(bottom[-1] + top[-1]) / 2, is_inside=names_inside)
    if run.info.hbm_bytes is not None:
        whole = run.info.hbm_bytes / GIB
        _fill(ax, times_s, top, np.full_like(top, whole), REST)
        ax.set_ylim(0, whole)
    ax.set_ylabel("HBM (GiB)")
    ax.grid(visible=False)
    ax.margins(x=0)


def spans(at_ns: Ints, most_points: int) -> tuple[Ints, bool]:
    """Divide the time from the first to the last of ``at_ns``.

    Returns:
        The instants at which something changed, and ``True``; or, of too many to see,
        edges of equal spans, and ``False``.
    """
    instants = np.unique(at_ns)
    if len(instants) <= most_points:
        return instants, True
    return np.linspace(instants[0], instants[-1], most_points + 1, dtype=np.int64), False


def held(rows: Frame, edges_ns: Ints, *, is_exact: bool) -> dict[str, Floats]:
    """A model's memory columns from each edge on: a row holds until the next, nothing before the first.

    Args:
        is_exact: the edges are instants, and values those that hold from there on; else
            means over the spans between them, the last one again at the last edge.
    """
    at_ns = ints(rows, "at_ns")
    at = np.searchsorted(at_ns, edges_ns, side="right")
    names = ("resident_bytes", "slot_bytes", "loading_bytes", "lent_bytes", "n_base_blocks", "n_base_used")
    if is_exact:
        return {name: np.append(0, ints(rows, name))[at].astype(np.float64) for name in names}
    found = {name: means(at_ns, ints(rows, name), edges_ns) for name in names}
    return {name: np.append(values, values[-1]) for name, values in found.items()}


def means(at_ns: Ints, values: Ints | Floats, edges_ns: Ints) -> Floats:
    """Mean of a step function over each span, from its integral, which is linear between two steps."""
    knots = np.append(at_ns, max(edges_ns[-1], at_ns[-1]))
    integral = np.append(0.0, np.cumsum(values * np.diff(knots).astype(np.float64)))
    return np.diff(np.interp(edges_ns, knots, integral, left=0.0)) / np.diff(edges_ns)


def _fill(ax: Axes, times_s: Floats, floor: Floats, top: Floats, owner: Owner) -> None:
    """Fill between two step functions, with points only where one of them changes."""
    if not (top > floor).any():
        return
    changes = np.append(True, (np.diff(floor) != 0) | (np.diff(top) != 0))
    changes[-1] = True
    style: Any = {"color": owner.colour} if owner.hatch is None else {"facecolor": owner.colour, "edgecolor": "white"}
    where = (times_s[changes], floor[changes], top[changes])
    ax.fill_between(*where, step="post", linewidth=0, hatch=owner.hatch, **style)


def _name(ax: Axes, name: str, y: float, *, is_inside: bool) -> None:
    if is_inside:
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        ax.text(0.01, y, name, transform=ax.get_yaxis_transform(), va="center", bbox=box)
    else:
        ax.text(1.01, y, name, transform=ax.get_yaxis_transform(), va="center")
