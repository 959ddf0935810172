"""The figure of who holds HBM over time: where the boundary between weights and KV cache was."""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from policies.types import GIB, NS_PER_S
from traces.folder import RunTables
from traces.style import BLUE, GREEN, PURPLE, SKY, VERMILION, panels
from traces.tables import ints, where

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from traces.tables import Frame

    Ints = npt.NDArray[np.int64]

_MOST_POINTS = 2000


@dataclass(frozen=True, slots=True)
class _Owner:
    """A use of HBM, and its bytes from a model's memory columns and the bytes of one of its KV blocks."""

    label: str
    colour: str
    of: Callable[[Mapping[str, Ints], int], Ints]


# From the bottom: the homes of the layers, then the KV cache.
_OWNERS = (
    _Owner("weights at home", BLUE, lambda use, _: use["resident_bytes"]),
    _Owner("slots", SKY, lambda use, _: use["slot_bytes"]),
    _Owner("loading", PURPLE, lambda use, _: use["loading_bytes"]),
    _Owner("lent to a KV cache", VERMILION, lambda use, _: use["lent_bytes"]),
    _Owner("own KV, used", GREEN, lambda use, block_bytes: use["n_base_used"] * block_bytes),
    _Owner(
        "own KV, free", "#B9E3D5", lambda use, block_bytes: (use["n_base_blocks"] - use["n_base_used"]) * block_bytes
    ),
)
_REST = ("activations, unassigned", "#EEEEEE")


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
            _draw_uses(ax, run)
            ax.set_title(run.info.label, loc="left")
        axes[-1][0].set_xlabel("time (s)")
        colours = [*((owner.label, owner.colour) for owner in _OWNERS), _REST]
        handles = [Patch(color=colour, label=label) for label, colour in colours]
        figure.legend(handles=handles, loc="outside lower center", ncols=4)


def _draw_uses(ax: Axes, run: RunTables) -> None:
    if run.memory is None or not len(run.memory):
        raise ValueError(f"run of {run.info.system}: it kept no memory table; run it with that table to draw HBM")
    times_ns = _times(ints(run.memory, "at_ns"))
    times_s = times_ns / NS_PER_S
    top = np.zeros(len(times_ns))
    for index, model in enumerate(run.info.models):
        columns = _held(where(run.memory, "model", [index]), times_ns)
        bottom = top
        for owner in _OWNERS:
            floor, top = top, top + owner.of(columns, model.block_bytes) / GIB
            ax.fill_between(times_s, floor, top, step="post", color=owner.colour, linewidth=0)
        ax.step(times_s, top, where="post", color="black", linewidth=0.8)
        ax.text(1.01, float(bottom[-1] + top[-1]) / 2, model.name, transform=ax.get_yaxis_transform(), va="center")
    if run.info.hbm_bytes is not None:
        whole = run.info.hbm_bytes / GIB
        ax.fill_between(times_s, top, whole, step="post", color=_REST[1], linewidth=0)
        ax.set_ylim(0, whole)
    ax.set_ylabel("HBM (GiB)")
    ax.grid(visible=False)
    ax.margins(x=0)


def _times(at_ns: Ints) -> Ints:
    """The instants at which something changed; evenly spread ones where there are too many to see."""
    instants = np.unique(at_ns)
    if len(instants) <= _MOST_POINTS:
        return instants
    return np.linspace(instants[0], instants[-1], _MOST_POINTS, dtype=np.int64)


def _held(rows: Frame, times_ns: Ints) -> dict[str, Ints]:
    """A model's memory columns at these times: a row holds until the next, nothing before the first."""
    at = np.searchsorted(ints(rows, "at_ns"), times_ns, side="right")
    names = ("resident_bytes", "slot_bytes", "loading_bytes", "lent_bytes", "n_base_blocks", "n_base_used")
    return {name: np.append(0, ints(rows, name))[at] for name in names}
