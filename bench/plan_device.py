"""Up to which rate a promise was kept on a device, beside what the simulator says of the same requests.

    python -m executor run +experiment=exec_c1 'rates=[2.5,3]' workload.duration_s=45 'compare=[recompute]'
    python -m bench.plan_device outputs/exec_c1/*/*            runs of one experiment, each at a rate of its own

Runs need not be given in order. For each system: the share of the requests that had what was promised, measured and
simulated (with the arrivals, lengths and settings that the run recorded), and the rates at which these shares cross
what is promised. Exit code 1 if two of them are more than 15 % apart, or the rates that were run do not bracket it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.again import again
from conf.carry_out import carry_out
from conf.planning.slo import Slo
from policies.types import NS_PER_S
from traces.results.folder import RunTables, read_run
from traces.workload.recorded import recorded

WITHIN = 0.15

SIMULATED: Mapping[str, object] = {"backend": {"world": "sim", "leaps": True}}


def kept_share(run: RunTables, slo: Slo) -> float:
    """Share of all requests that finished, in time and fluently."""
    names = ("arrival_ns", "first_token_ns", "outcome", "n_output_tokens", "mean_gap_ns")
    of = run.columns("requests", names)
    in_time = of["first_token_ns"] - of["arrival_ns"] <= slo.ttft_s * NS_PER_S
    fluent = (of["n_output_tokens"] < 2) | (of["mean_gap_ns"] <= slo.tbt_s * NS_PER_S)
    return float(((of["outcome"] == "finished") & in_time & fluent).mean())


def simulated_share(real: RunTables, compute: str, slo: Slo) -> float:
    """The same of its requests, served by the simulator."""
    with TemporaryDirectory() as folder:
        run = again(real.info, recorded(real), {**SIMULATED, "compute": compute})
        return kept_share(read_run(carry_out(run, Path(folder) / "run")), slo)


def crossing(shares: Sequence[tuple[float, float]], promised: float) -> float | None:
    """The first rate, on straight lines between those measured, at which the share falls below what is promised."""
    ordered = sorted(shares)
    for (slower, before), (faster, after) in pairwise(ordered):
        if before >= promised > after:
            return slower + (faster - slower) * (before - promised) / (before - after)
    return None


def at_its_rate(folder: Path) -> tuple[float, RunTables]:
    """Open a run, with its requests/s.

    Raises:
        SystemExit: it is not complete, or has no rate.
    """
    run = read_run(folder)
    rate = run.info.rate_per_s
    if run.state != "complete" or rate is None:
        raise SystemExit(f"{folder} is {run.state} at {rate} requests/s; name complete runs at a rate")
    return rate, run


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan_device", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of complete runs of the executor")
    parser.add_argument("--compute", default="table", help="where the simulator takes compute times from (table)")
    parser.add_argument("--slo-ttft", type=float, default=2.0, metavar="S", help="seconds (2)")
    parser.add_argument("--slo-tbt", type=float, default=0.1, metavar="S", help="seconds (0.1)")
    given = parser.parse_args(arguments)
    slo = Slo(ttft_s=given.slo_ttft, tbt_s=given.slo_tbt)
    found: dict[str, list[tuple[float, float, float]]] = {}
    print(f"{'system':<12} {'requests/s':>10} {'measured':>9} {'simulated':>10}   {slo.label}")
    for rate, real in sorted(map(at_its_rate, given.runs), key=lambda pair: pair[0]):
        row = rate, kept_share(real, slo), simulated_share(real, given.compute, slo)
        found.setdefault(real.info.system, []).append(row)
        print(f"{real.info.system:<12} {rate:>10.3g} {row[1]:>9.3f} {row[2]:>10.3f}", flush=True)
    is_off = False
    for system, rows in found.items():
        measured, told = (crossing([(row[0], row[side]) for row in rows], slo.share) for side in (1, 2))
        if measured is None or told is None:
            print(f"{system}: the promise is kept, or broken, at all of these rates; run others")
            is_off = True
            continue
        is_off |= abs(told / measured - 1) > WITHIN
        error = told / measured - 1
        print(f"{system}: kept up to {measured:.3g} requests/s measured, {told:.3g} simulated ({error:+.1%})")
    return int(is_off)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
