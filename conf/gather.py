"""One table and one figure out of several experiments: ``python -m sim report``, and what ``-m`` ends with."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from conf.cli import Refused


class OneReport(Callback):
    """Tells what came out of all jobs of a sweep together, once they are done."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:  # noqa: ARG002  # as Hydra calls it
        """Gather the folder of the sweep."""
        folder = Path(config.hydra.sweep.dir).absolute()
        tell_together(complete_runs([folder]), folder, figures=config.output.figures)


def main(arguments: Sequence[str]) -> int:
    """Carry out ``report``.

    Raises:
        Refused: the folders hold no complete run.
    """
    parser = ArgumentParser(description="One table and one figure of all complete runs below the folders.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="of an experiment, or of several")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="for what is told; else the first FOLDER")
    given = parser.parse_args(arguments)
    runs = complete_runs(given.folders)
    if not runs:
        raise Refused(f"no complete run below {', '.join(map(str, given.folders))}; name the folder of an experiment")
    into = given.into or given.folders[0]
    into.mkdir(parents=True, exist_ok=True)
    tell_together(runs, into, figures=True)
    return 0


def complete_runs(folders: Sequence[Path]) -> list[Path]:
    """Find the complete runs below the folders, one of several that are the same."""
    return list({run.name: run for folder in folders for run in _runs_below(folder)}.values())


def tell_together(runs: Sequence[Path], into: Path, *, figures: bool) -> None:
    """Tell what runs have come to as if they were of one experiment; nothing if there are none.

    Args:
        into: exists; for the report, the table and the figure.
    """
    from conf.outcome import tell
    from traces.claims import Result
    from traces.folder import read_info
    from traces.grid import differences
    from traces.metrics import summary_of

    infos = [read_info(run) for run in runs]
    results = [
        Result(info=replace(info, grid=grid), summary=summary_of(run))
        for info, grid, run in zip(infos, differences(infos), runs, strict=True)
    ]
    if results:
        tell(results, runs, into, figures=figures)
        print(f"results in {into}")


def _runs_below(folder: Path) -> Iterator[Path]:
    """Complete runs in the order of their experiments; jobs of a sweep in the order of their numbers."""
    from conf.outcome import INDEX
    from traces.folder import is_complete, read_json

    for index in sorted(folder.rglob(INDEX), key=lambda path: [part.zfill(9) for part in path.parts]):
        yield from filter(is_complete, (index.parent / name for name in read_json(index)["runs"]))
