"""An experiment: its runs side by side, then one table, the paper's claims, and the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from conf.build import Experiment, Run
from conf.carry_out import carry_out, run_info
from conf.parallel import side_by_side
from traces.claims import Claim, Result, claims_from
from traces.metrics import read_summary
from traces.report import report


def run(experiment: Experiment, folder: Path) -> None:
    """Carry out the runs in ``folder``, print how they compare, and draw it.

    Raises:
        ValueError, Stuck: as ``carry_out``.
    """
    print(describe(experiment), flush=True)
    folders = list(_carried_out(experiment, folder))
    results = [
        Result(info=run_info(each), summary=read_summary(where))
        for each, where in zip(experiment.runs, folders, strict=True)
    ]
    text = report(results, paper_claims())
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}")
    if experiment.figures:
        for figure in (*draw(experiment, folder), *draw_against_rate(results, folder)):
            print(f"drew {figure}")
    print(f"results in {folder}")


def describe(experiment: Experiment) -> str:
    """Say what runs: machine, models, and each workload in a line."""
    first = experiment.runs[0]
    models = ", ".join(f"{model.shape.name} {model.share:.0%}" for model in first.models)
    workloads = dict.fromkeys(f"  {each.lengths}: {each.workload.description}" for each in experiment.runs)
    systems = ", ".join(dict.fromkeys(each.system for each in experiment.runs))
    return "\n".join([f"{experiment.name}: {systems} on {first.hardware.name} with {models}", *workloads])


def paper_claims() -> tuple[Claim, ...]:
    """Read the claims of the papers."""
    import yaml

    text = (files("conf") / "claims" / "mirage.yaml").read_text(encoding="utf-8")
    return claims_from(yaml.safe_load(text))


def draw(experiment: Experiment, folder: Path) -> Iterator[Path]:
    """Draw distributions for each lengths, HBM for each workload; tell each figure when it is there."""
    from traces.folder import read_run
    from traces.hbm_plot import hbm
    from traces.plots import latencies

    for lengths, group in groupby(experiment.runs, key=lambda each: each.lengths):
        runs = [(workload_name(each), read_run(folder / run_name(each))) for each in group]
        figure = folder / f"latencies-{lengths}.png"
        latencies([tables for _, tables in runs], figure)
        yield figure
        for workload, same_workload in groupby(runs, key=lambda pair: pair[0]):
            figure = folder / f"hbm-{workload}.png"
            hbm([tables for _, tables in same_workload], figure)
            yield figure


def draw_against_rate(results: Sequence[Result], folder: Path) -> Iterator[Path]:
    """Draw the figures of merit against the rate, if there are several."""
    from traces.plots import against_rate

    if len({result.info.rate_per_s for result in results}) > 1:
        figure = folder / "against-rate.png"
        against_rate(results, figure)
        yield figure


def _carried_out(experiment: Experiment, folder: Path) -> Iterator[Path]:
    """Carry out the runs, several at a time, in their order; show how far they are on a terminal."""
    from tqdm import tqdm

    places = [(each, folder / run_name(each)) for each in experiment.runs]
    done = side_by_side(_carry_out, places, n_jobs=min(experiment.jobs, len(places)))
    yield from tqdm(done, total=len(places), unit="run", disable=not sys.stderr.isatty())


def _carry_out(place: tuple[Run, Path]) -> Path:
    return carry_out(*place)


def run_name(run: Run) -> str:
    """Name the folder of a run, unlike any other of its experiment."""
    return f"{workload_name(run)}-{run.system}"


def workload_name(run: Run) -> str:
    """Name what the systems of an experiment have in common: lengths and rate."""
    rate = run.settings.arrivals.rate
    return f"{run.lengths}-{'own-rate' if rate is None else f'{rate:g}'}"
