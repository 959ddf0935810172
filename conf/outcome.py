"""What came out of runs: one table, the papers' claims beside it, one figure of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import relpath
from pathlib import Path

from traces.claims import Claim, Result
from traces.report import report
from traces.results.runs_csv import write_runs_csv
from traces.sessions.files import write_session_tables

INDEX = "experiment.json"
"""Names the runs of an experiment's folder in their order; there from the start."""

PAGE = "report.html"


def tell(results: Sequence[Result], folders: Sequence[Path], folder: Path, *, figures: bool) -> None:
    """Print how the runs compare, and leave it in ``folder``: ``report.txt``, ``runs.csv``, a figure.

    Args:
        folders: of each run.
        figures: whether to draw.
    """
    text = report(results, paper_claims(results))
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
    write_runs_csv(results, [relpath(each, folder) for each in folders], folder / "runs.csv")
    print(f"\n{text}")
    for table in write_session_tables(folders, folder):
        print(f"wrote {table}")
    if figures:
        for figure in _draw(results, folder):
            print(f"drew {figure}")


def write_report_page(results: Sequence[Result], folders: Sequence[Path], path: Path) -> None:
    """Write what runs have come to as one HTML file.

    Args:
        folders: of each run.

    Raises:
        ValueError: the file cannot be written.
    """
    from traces.page.page import write_page
    from traces.results.folder import read_run

    runs = [(result, read_run(folder)) for result, folder in zip(results, folders, strict=True)]
    try:
        write_page(runs, path, claims=paper_claims(results))
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; name a file that can be written") from None


def paper_claims(results: Sequence[Result]) -> tuple[Claim, ...]:
    """Give the claims of the papers that say something of these mixes: changes of one system against another."""
    from conf.paper.catalog import papers, read_catalog

    mixes = dict.fromkeys(result.info.mix for result in results)
    changes = [entry for entry in read_catalog(*papers()) if entry.ours is not None and entry.ours.change]
    return tuple(
        entry.as_claim(mix) for mix in mixes for entry in changes if entry.ours and mix in entry.ours.where.values()
    )


def _draw(results: Sequence[Result], folder: Path) -> Iterator[Path]:
    """Draw the figures of merit against the one number that varies, else against the rate, if one of them does."""
    from traces.plots.sweep import against_rate, against_setting, numeric_keys

    keys = numeric_keys(results)
    if len(keys) == 1:
        figure = folder / f"against-{keys[0].rpartition('.')[2]}.png"
        against_setting(results, keys[0], figure)
        yield figure
    elif len({result.info.rate_per_s for result in results}) > 1:
        figure = folder / "against-rate.png"
        against_rate(results, figure)
        yield figure
