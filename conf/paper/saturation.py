"""``python -m sim saturation EXPERIMENT ...``: requests/s that the baseline of an experiment serves at most.

All requests are there at once; what is told is how many finish a second in between, when a tenth has finished and a
tenth is left: the last long ones run nearly alone. Experiments name shares of it as ``loads`` where a paper gives no
rate.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from conf.carry_out import Place, complete
from conf.cli import Refused
from conf.fingerprint import folder_name
from conf.paper.collect import composed
from policies.errors import Stuck
from policies.types import NS_PER_S
from traces.results.folder import read_run

N_REQUESTS = 3000
"""Many times what runs at once."""

AT_ONCE = (
    "arrivals=poisson",
    "arrivals.rate=1000000",
    f"workload.n_requests={N_REQUESTS}",
    "workload.duration_s=null",
    "loads=[]",
    "figure=null",
    "++grid.seed=[0]",
    "keep=[]",
    "output.figures=false",
)


def main(arguments: Sequence[str]) -> int:
    """Carry out ``saturation``.

    Raises:
        Refused: there is no such experiment, or it cannot run.
    """
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="+", metavar="EXPERIMENT", help="of conf/experiment")
    parser.add_argument("--root", type=Path, default=Path("outputs/saturation"), help="keeps runs for the next time")
    given = parser.parse_args(arguments)
    try:
        for name in given.experiments:
            for line in saturations(name, given.root):
                print(line, flush=True)
    except (ValueError, Stuck) as mistake:
        raise Refused(str(mistake)) from None
    return 0


def saturations(name: str, root: Path) -> Iterator[str]:
    """For each lengths and point of an experiment, a line with what its baseline serves."""
    runs = composed(name, (*AT_ONCE, _without_rates(name))).runs
    for run in runs:
        if run.system == runs[0].system:
            place = Place(run=run, folder=root / folder_name(run))
            complete(place)
            per_s = served_per_s(place.folder)
            yield f"{name}  {run.system}  {run.lengths} {dict(run.grid) or ''}  {per_s:.3g} requests/s"


def _without_rates(name: str) -> str:
    """The experiment's points, but for the rates that they set."""
    points = [
        {key: value for key, value in point.items() if key != "arrivals.rate"}
        for point in composed(name).settings.points
    ]
    different = list({json.dumps(point): point for point in points if point}.values())
    return f"points={json.dumps(different, separators=(',', ':')).replace(chr(34), '')}"


def served_per_s(folder: Path) -> float:
    """Requests/s between the first tenth of the finishes and the last."""
    columns = read_run(folder).columns("requests", ("finish_ns", "outcome"))
    finish_ns = np.sort(columns["finish_ns"][columns["outcome"] == "finished"])
    first, last = len(finish_ns) // 10, len(finish_ns) * 9 // 10
    return (last - first) * NS_PER_S / int(finish_ns[last] - finish_ns[first])
