"""``sessions.csv``, ``turns.csv``, ``progress.csv``, ``bins.csv``: figures of sessions, and what tells runs apart."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from traces.results.folder import RunInfo, RunTables, read_run
from traces.sessions.metrics import Figures, by_progress, by_time, by_turn, figures_of
from traces.sessions.turns import Turns, sessions_of, turns_of


def write_session_tables(folders: Sequence[Path], folder: Path) -> list[Path]:
    """Write a row a run, and for each run one a turn, 128 turns and half hour; nothing if no run served sessions.

    Args:
        folders: of the runs.
        folder: where the tables go.

    Returns:
        The tables.
    """
    runs = [
        (run, turns_of(run, settings)) for run in map(read_run, folders) if (settings := sessions_of(run.info.config))
    ]
    if not runs:
        return []
    tables: dict[str, Callable[[RunTables, Turns], Iterable[Figures]]] = {
        "sessions.csv": lambda run, turns: [figures_of(run, turns)],
        "turns.csv": lambda _, turns: by_turn(turns),
        "progress.csv": lambda _, turns: by_progress(turns),
        "bins.csv": by_time,
    }
    varied = list(dict.fromkeys(key for run, _ in runs for key in run.info.grid))
    for name, rows_of in tables.items():
        rows = [{**_identity(run.info, varied), **row} for run, turns in runs for row in rows_of(run, turns)]
        _write(folder / name, rows)
    return [folder / name for name in tables]


def _identity(info: RunInfo, varied: Sequence[str]) -> dict[str, object]:
    settings = sessions_of(info.config)
    n = None if settings is None else settings.n_sessions or settings.n_at_once
    place = {"mix": info.mix, "sessions": info.lengths, "n_sessions": n, "system": info.system}
    return {**place, **{key: info.grid.get(key) for key in varied}, "seed": info.seed}


def _write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
