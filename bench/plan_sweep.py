"""Whether ``sim plan`` finds what a sweep finds that tries every rate: five mixes, each run whole, with its tables.

    python -m bench.plan_sweep                       a table; exit code 1 if a rate disagrees
    python -m bench.plan_sweep --only c1 --json rows.json

A rate agrees if it is within 5 % of the sweep's or within the interval that ``plan`` gives for it. The sweep serves
the requests of ``plan`` at rates 4 % apart from half of what it found on, through ``conf/carry_out.py``; a promise is
looked at in the table of requests, and the sweep's rate is the last before the first at which it is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from conf.carry_out import carry_out
from conf.parallel import Parallel, side_by_side
from conf.planning.answer import Answer, Planner, Rates
from conf.planning.ask import question
from conf.planning.slo import Slo
from conf.planning.streams import Stream
from conf.planning.systems import configuration
from conf.run import Run
from policies.types import NS_PER_S
from traces.results.folder import read_run
from traces.results.provenance import commit

TRACE = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces" / "azure_code_2023.csv.gz"

STEP = 1.04
FIRST, LAST = 0.5, 1.35
WITHIN = 0.05

AZURE = ["--trace", str(TRACE)] if TRACE.exists() else ["--arrivals", "azure_like", "--lengths", "azure_code"]

MIXES: dict[str, list[str]] = {
    "azure": ["--models", "llama_3_8b*2,opt_13b", "--hardware", "h100_sxm", *AZURE],
    "c1": ["mix=c1", "hardware=gh200_paper", "lengths=[sharegpt]", "arrivals=azure_like"],
    "c2": ["mix=c2", "hardware=gh200_paper", "lengths=[sharegpt]", "arrivals=azure_like"],
    "opt": ["--models", "opt_13b*2", "--hardware", "a100_80", "--lengths", "sharegpt"],
    "moe": ["--models", "qwen3_30b_a3b", "--hardware", "h100_sxm", "--lengths", "azure_conv", "--context", "8192"],
}
"""Command lines of ``sim plan``: tenants of one and of several families, bursts and none, dense and a mixture."""

SYSTEMS = ["--policies", "recompute,mirage", "--caps", "0.25"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system of one mix."""

    mix: str
    system: str
    planned: float
    low: float
    high: float
    swept: float
    by_seed: tuple[tuple[float, float], ...]

    @property
    def agrees(self) -> bool:
        """See the module."""
        return abs(self.planned / self.swept - 1) <= WITHIN or self.low <= self.swept <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One system under the requests of one seed."""

    run: Run
    stream: Stream
    slo: Slo
    planned: float


def swept(sweep: Sweep) -> float:
    """Try every rate; the middle between the last that keeps the promise and the first that does not."""
    rate = sweep.planned * FIRST
    while rate < sweep.planned * LAST and _keeps(sweep, rate):
        rate *= STEP
    return rate / sqrt(STEP)


def _keeps(sweep: Sweep, rate_per_s: float) -> bool:
    slo, n = sweep.slo, len(sweep.stream.arrivals)
    with TemporaryDirectory() as folder:
        run = read_run(carry_out(replace(sweep.run, workload=sweep.stream.at(rate_per_s)), Path(folder)))
        of = run.columns("requests", ("arrival_ns", "first_token_ns", "outcome", "n_output_tokens", "mean_gap_ns"))
    finished = of["outcome"] == "finished"
    in_time = of["first_token_ns"] - of["arrival_ns"] <= slo.ttft_s * NS_PER_S
    fluent = (of["n_output_tokens"] < 2) | (of["mean_gap_ns"] <= slo.tbt_s * NS_PER_S)
    return int((finished & in_time & fluent).sum()) >= slo.share * n - 1e-9


def rows(name: str, arguments: Sequence[str], how: Parallel) -> Iterator[Row]:
    """Plan a mix, then sweep each of its systems."""
    jobs = [] if how.jobs is None else ["--jobs", str(how.jobs)]
    asked = question([*arguments, *SYSTEMS, "--seeds", "3", *jobs])
    answer = Planner(asked).answer()
    made = configuration(asked)
    for rates in answer.rates:
        run = made.run(rates.system, answer.traffic)
        yield _row(name, answer, rates, run, how)


def _row(name: str, answer: Answer, rates: Rates, run: Run, how: Parallel) -> Row:
    planned = [bracket.middle for bracket in rates.brackets]
    sweeps = [
        Sweep(run=run, stream=stream, slo=answer.asked.slo, planned=rate)
        for stream, rate in zip(answer.traffic.streams, planned, strict=True)
    ]
    found = list(side_by_side(swept, sweeps, how))
    return Row(
        mix=name,
        system=rates.system.name,
        planned=rates.rate.mean,
        low=rates.rate.low,
        high=rates.rate.high,
        swept=fmean(found),
        by_seed=tuple(zip(planned, found, strict=True)),
    )


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan_sweep", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(MIXES), help="one mix")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--json", type=Path, help="where the rows are left, too")
    given = parser.parse_args(arguments)
    chosen = {given.only: MIXES[given.only]} if given.only else MIXES
    found: list[Row] = []
    print(f"{'mix':<7} {'system':<22} {'plan /s':>8} {'95 %':>14} {'sweep /s':>9} {'error':>7}  by seed: plan, sweep")
    for name, command in chosen.items():
        for row in rows(name, command, Parallel(jobs=given.jobs)):
            found.append(row)
            error = row.planned / row.swept - 1
            seeds = "; ".join(f"{planned:.3g}, {rate:.3g}" for planned, rate in row.by_seed)
            print(
                f"{row.mix:<7} {row.system:<22} {row.planned:>8.3g} {row.low:>6.3g} -{row.high:>6.3g} "
                f"{row.swept:>9.3g} {error:>+7.1%}  {seeds}{'' if row.agrees else '  DISAGREES'}",
                flush=True,
            )
    if given.json is not None:
        document = {"commit": commit(), "rows": [{**asdict(row), "agrees": row.agrees} for row in found]}
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(not all(row.agrees for row in found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
