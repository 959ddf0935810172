"""One table, one figure and one page out of several runs: ``python -m sim report``, and what ``-m`` ends with."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from conf.cli import Refused
from conf.outcome import PAGE, write_report_page

if TYPE_CHECKING:
    from traces.claims import Result


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
    parser = ArgumentParser(description="One table, one figure and one HTML page of runs beside each other.")
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="of a run, or of an experiment with its runs",
    )
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="for what is told; else the first FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"only the page, in this file instead of {PAGE}")
    given = parser.parse_args(arguments)
    runs = complete_runs(given.folders)
    if not runs:
        raise Refused(f"no complete run below {', '.join(map(str, given.folders))}; name the folder of an experiment")
    results = results_of(runs)
    page = given.out
    if page is None:
        into = given.into or given.folders[0]
        into.mkdir(parents=True, exist_ok=True)
        _tell(results, runs, into, figures=True)
        page = into / PAGE
    try:
        write_report_page(results, runs, page)
    except ValueError as mistake:
        raise Refused(str(mistake)) from None
    print(f"wrote {page}")
    return 0


def complete_runs(folders: Sequence[Path]) -> list[Path]:
    """Find the runs that are named, in any state, and the complete ones below the others; one of several alike."""
    return list({run.name: run for folder in folders for run in _runs_at(folder)}.values())


def results_of(runs: Sequence[Path]) -> list[Result]:
    """Read the figures of runs as if they were of one experiment: named by all in which they differ."""
    from traces.claims import Result
    from traces.results.folder import read_info
    from traces.results.grid import differences
    from traces.results.metrics import summary_of

    infos = [read_info(run) for run in runs]
    return [
        Result(info=replace(info, grid=grid), summary=summary_of(run))
        for info, grid, run in zip(infos, differences(infos), runs, strict=True)
    ]


def tell_together(runs: Sequence[Path], into: Path, *, figures: bool) -> None:
    """Tell what runs have come to as if they were of one experiment; nothing if there are none.

    Args:
        into: exists; for the report, the table and the figure.
    """
    if runs:
        _tell(results_of(runs), runs, into, figures=figures)


def _tell(results: Sequence[Result], runs: Sequence[Path], into: Path, *, figures: bool) -> None:
    from conf.outcome import tell

    tell(results, runs, into, figures=figures)
    print(f"results in {into}")


def _runs_at(folder: Path) -> Iterator[Path]:
    if (folder / "run.json").exists():
        yield folder
    else:
        yield from _runs_below(folder)


def _runs_below(folder: Path) -> Iterator[Path]:
    """Complete runs in the order of their experiments; jobs of a sweep in the order of their numbers."""
    from conf.outcome import INDEX
    from traces.results.folder import is_complete, read_json

    for index in sorted(folder.rglob(INDEX), key=lambda path: [part.zfill(9) for part in path.parts]):
        yield from filter(is_complete, (index.parent / name for name in read_json(index)["runs"]))
