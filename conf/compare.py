"""An experiment: its runs side by side, then one table, the paper's claims, and the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from conf.build import Experiment
from conf.carry_out import Place, complete
from conf.cli import Refused
from conf.experts_csv import write_experts_csv
from conf.fingerprint import folder_name
from conf.grid import axes
from conf.outcome import INDEX, PAGE, tell, write_report_page
from conf.paper.cells import read_tables
from conf.paper.score import Told
from conf.parallel import side_by_side
from conf.run import run_info, workload_name
from conf.sharing import slices
from policies.serving.tenancy import Mig
from traces.claims import Result
from traces.results.folder import is_complete, write_json
from traces.results.metrics import summary_of


def run(experiment: Experiment, folder: Path) -> Told:
    """Carry out the runs in ``folder``, print how they compare, and draw it.

    Runs that the folder holds complete are not done again.

    Returns:
        What came out, with the numbers of the paper's figure if the experiment names one.

    Raises:
        ValueError, Stuck: as ``complete``.
        KeyboardInterrupt: with what is there, and how to go on.
    """
    print(describe(experiment), flush=True)
    places = [Place(run=each, folder=folder / folder_name(each)) for each in experiment.runs]
    write_json(folder / INDEX, {"runs": [place.folder.name for place in places]})
    _complete(experiment, places)
    results = [Result(info=run_info(place.run), summary=summary_of(place.folder)) for place in places]
    if results:
        tell(results, [place.folder for place in places], folder, figures=experiment.figures)
    if write_experts_csv(experiment.runs, [place.folder for place in places], folder / "experts.csv"):
        print(f"wrote {folder / 'experts.csv'}")
    numbers: Mapping[str, float] = {}
    if experiment.settings.figure is not None:
        numbers = _as_in_the_paper(experiment, results, places, folder)
    elif experiment.figures:
        for figure in draw(places, folder):
            print(f"drew {figure}")
    if experiment.page:
        write_report_page(results, [place.folder for place in places], folder / PAGE)
        print(f"wrote {folder / PAGE}")
    print(f"results in {folder}")
    return Told(results=results, numbers=numbers, tables=read_tables(folder))


def _as_in_the_paper(
    experiment: Experiment, results: Sequence[Result], places: Sequence[Place], folder: Path
) -> Mapping[str, float]:
    """Draw the paper's figure, and leave its numbers."""
    from conf.paper.figures import FIGURES, Drawn

    name = experiment.settings.figure
    assert name is not None
    drawn = Drawn(experiment=experiment, results=results, folders=[place.folder for place in places], into=folder)
    numbers = FIGURES[name](drawn)
    write_json(folder / "numbers.json", numbers)
    for key, value in numbers.items():
        print(f"  {key}: {value:.6g}")
    return numbers


def _complete(experiment: Experiment, places: Sequence[Place]) -> None:
    """Carry out what is not complete, several at a time; show how far it is on a terminal."""
    left = [place for place in places if not is_complete(place.folder)]
    if len(left) < len(places):
        print(f"  {len(places) - len(left)} of {len(places)} runs are there already", flush=True)
    try:
        for _ in _shown(side_by_side(complete, left, experiment.parallel), len(left)):
            pass
    except KeyboardInterrupt:
        n_complete = sum(is_complete(place.folder) for place in places)
        mend = f"the same command with output.folder={left[0].run.settings.output.folder} does the others"
        raise KeyboardInterrupt(f"{n_complete} of {len(places)} runs are complete; {mend}") from None
    for place in left:
        if not is_complete(place.folder):
            raise Refused(f"{place.folder}: the run has ended, but not here; give an output.folder that all share")


def _shown(done: Iterable[None], total: int) -> Iterable[None]:
    if not sys.stderr.isatty():
        return done
    from tqdm import tqdm

    return tqdm(done, total=total, unit="run")


def describe(experiment: Experiment) -> str:
    """Say what runs: machine, models, each workload in a line, what varies."""
    if not experiment.runs:
        return f"{experiment.name}: arithmetic only"
    first = experiment.runs[0]
    models = ", ".join(f"{model.shape.name} {model.share:.0%}" for model in first.models)
    workloads = dict.fromkeys(f"  {each.lengths}: {each.workload.description}" for each in experiment.runs)
    systems = ", ".join(dict.fromkeys(each.system for each in experiment.runs))
    varied = [f"  {key}: {', '.join(map(str, values))}" for key, values in axes(first.settings.grid).items()]
    head = [f"{experiment.name}: {systems} on {first.hardware.name} with {models}"]
    if isinstance(first.tenancy, Mig) and (note := slices(first.models, first.hardware.name)) is not None:
        head.append(f"  {note}")
    return "\n".join([*head, *workloads, *varied])


def draw(places: Sequence[Place], folder: Path) -> Iterator[Path]:
    """Draw distributions for each lengths, HBM for each workload, of the first point of a grid; tell each figure."""
    from traces.plots.hbm import hbm
    from traces.plots.latencies import latencies
    from traces.results.folder import read_run

    for lengths, group in groupby(_first_point(places), key=lambda place: place.run.lengths):
        runs = [(workload_name(place.run), read_run(place.folder)) for place in group]
        figure = folder / f"latencies-{lengths}.png"
        latencies([tables for _, tables in runs], figure)
        yield figure
        for workload, same_workload in groupby(runs if _samples_hbm(places) else (), key=lambda pair: pair[0]):
            figure = folder / f"hbm-{workload}.png"
            hbm([tables for _, tables in same_workload], figure)
            yield figure


def _samples_hbm(places: Sequence[Place]) -> bool:
    return "memory" in places[0].run.settings.keep


def _first_point(places: Sequence[Place]) -> Iterable[Place]:
    """For each lengths, rate and system the first run."""
    found: dict[tuple[str, str], Place] = {}
    for place in places:
        found.setdefault((workload_name(place.run), place.run.system), place)
    return found.values()
