"""``runs.csv``: one row a run, what tells it from the others and its figures, for whoever goes on from there."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from traces.claims import METRICS, Result

_FIRST = ("mix", "lengths", "rate_per_s", "system")

_COUNTS = (
    "n_finished",
    "n_dropped",
    "n_unfinished",
    "n_preemptions",
    "n_recomputed_tokens",
    "n_hit_tokens",
    "n_lends",
    "n_reverts",
    "n_flips",
    "peak_lent_bytes",
    "stall_share",
)
"""Attributes of ``Figures`` that stand beside the metrics."""


def write_runs_csv(results: Sequence[Result], folders: Sequence[str], path: Path) -> None:
    """Write the table; durations are in ns, an absent value is an empty cell.

    Args:
        folders: of each run, as a reader of the table finds it.
    """
    varied = list(dict.fromkeys(key for result in results for key in result.info.grid))
    metrics = {name if name.endswith("_per_s") else f"{name}_ns": metric for name, metric in METRICS.items()}
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ["mix", "lengths", "rate_per_s", "system", *varied, "seed", *metrics, *_COUNTS, "state", "folder"]
        )
        for result, folder in zip(results, folders, strict=True):
            info, total = result.info, result.summary.total
            table.writerow(
                [
                    info.mix,
                    info.lengths,
                    info.rate_per_s,
                    info.system,
                    *(info.grid.get(key) for key in varied),
                    info.seed,
                    *(metric.of(total) for metric in metrics.values()),
                    *(getattr(total, name) for name in _COUNTS),
                    result.summary.state,
                    folder,
                ]
            )
