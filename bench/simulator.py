"""How fast the simulator is, as a whole process: start-up, tables, summary and all.

    python -m bench.simulator                                    every workload, 1,000 to 1,000,000 requests
    python -m bench.simulator --only fixed --requests 100000     one row
    python -m bench.simulator --check --json rows.json           exit code 1 if a target is missed

Each run is ``python -m sim run ...`` with the memory timeline and the figures off. Short runs are
repeated, and their medians told. What is measured, and what it must reach: ``bench/targets.py``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from os import cpu_count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.child import Spent, spent_by
from bench.journal import submissions_per_request
from bench.targets import Doubling, Row, exponent, missed
from bench.workloads import FIXED, NO_STEPS, Timed, at_hand, doubled_output
from traces.results.folder import read_run
from traces.results.provenance import commit, versions

SIZES = (1_000, 10_000, 100_000, 1_000_000)
REPEATED_TO = 10_000
"""Runs of up to so many requests are repeated."""

DOUBLED = 60_000
"""Requests of the runs of which one has twice the output tokens: the engine takes seconds."""

REPOSITORY = Path(__file__).resolve().parents[1]


def simulated(overrides: Sequence[str], folder: Path) -> Spent:
    """Run the command with its results in ``folder``."""
    command = [sys.executable, "-m", "sim", "run", *overrides, f"output.folder={folder}"]
    return spent_by(command, folder=REPOSITORY, is_there=lambda: any(folder.glob("*/run.json")))


def n_tokens_in(folder: Path) -> int:
    """Add up prompt and output tokens of the only run below ``folder``."""
    (header,) = folder.glob("*/run.json")
    columns = read_run(header.parent).columns("requests", ("n_prompt_tokens", "n_output_tokens"))
    return sum(int(column.sum()) for column in columns.values())


def measure(workload: str, timed: Timed, n_requests: int, repeats: int, submissions: float) -> Row:
    """Measure one row."""
    runs: list[Spent] = []
    n_tokens = 0
    for _ in range(repeats if n_requests <= REPEATED_TO else 1):
        with TemporaryDirectory() as folder:
            runs.append(simulated(timed.command_line(n_requests), Path(folder)))
            n_tokens = n_tokens_in(Path(folder))
    return Row(
        workload=workload,
        n_requests=n_requests,
        n_runs=len(runs),
        wall_s=median(run.wall_s for run in runs),
        starts_s=median(run.seen_s or run.wall_s for run in runs),
        cpu_s=median(run.cpu_s for run in runs),
        peak_mib=median(run.peak_mib for run in runs),
        n_tokens=n_tokens,
        submissions_per_request=submissions,
    )


def start_up(repeats: int) -> Spent:
    """Measure a run of one request: what every run takes."""
    runs: list[Spent] = []
    for _ in range(repeats):
        with TemporaryDirectory() as folder:
            runs.append(simulated(FIXED.command_line(1), Path(folder)))
    return sorted(runs, key=lambda run: run.wall_s)[len(runs) // 2]


def doubling(n_requests: int, repeats: int) -> Doubling:
    """Measure what twice the output tokens take the engine, with no table of steps; in turns, medians."""
    of_both = doubled_output()
    runs = [[_engine_cpu_s(timed, n_requests) for timed in of_both] for _ in range(repeats)]
    once_s, twice_s = (median(each) for each in zip(*runs, strict=True))
    return Doubling(once_s=once_s, twice_s=twice_s)


def _engine_cpu_s(timed: Timed, n_requests: int) -> float:
    script = REPOSITORY / "bench" / "engine_cpu.py"  # no module of the package, which has the plain modules loaded
    command = [sys.executable, str(script), *timed.command_line(n_requests), NO_STEPS]
    return float(spent_by(command, environment={"PYTHONPATH": str(REPOSITORY)}).printed)


def lines(row: Row) -> str:
    """Write a row of the table."""
    return (
        f"{row.workload:<12} {row.n_requests:>9,} {row.wall_s:>8.2f} {row.starts_s:>7.2f} {row.cpu_s:>8.2f} "
        f"{row.peak_mib:>7.0f} {row.n_requests / row.wall_s:>10,.0f} {row.n_tokens / row.wall_s:>13,.0f} "
        f"{row.submissions_per_request:>9.2f}"
    )


HEADING = (
    f"{'':<12} {'requests':>9} {'wall s':>8} {'starts':>7} {'CPU s':>8} {'MiB':>7} {'requests/s':>10} {'tokens/s':>13} "
    f"{'submitted':>9}"
)


def table(chosen: Mapping[str, Timed], sizes: Sequence[int], repeats: int) -> Iterator[Row]:
    """Measure and print row after row."""
    print(HEADING, flush=True)
    for workload, timed in chosen.items():
        submissions = submissions_per_request(timed)
        for n_requests in sizes:
            if timed.most_requests is None or n_requests <= timed.most_requests:
                row = measure(workload, timed, n_requests, repeats, submissions)
                print(lines(row), flush=True)
                yield row


def machine() -> str:
    """Say on what it was measured."""
    names = [line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")]
    return f"{cpu_count()} cores, {names[0] if names else platform.machine()}, {platform.platform()}"


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line."""
    known = at_hand()
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(known), help="one workload")
    parser.add_argument("--requests", type=int, nargs="+", default=list(SIZES), help="how many, for each a row")
    parser.add_argument("--repeats", type=int, default=3, help=f"runs of up to {REPEATED_TO:,} requests")
    parser.add_argument("--check", action="store_true", help="tell which targets are missed, and end with 1 if any is")
    parser.add_argument("--json", type=Path, help="where the rows are left, too")
    given = parser.parse_args(arguments)
    chosen = {given.only: known[given.only]} if given.only else known
    rows = list(table(chosen, given.requests, given.repeats))
    nothing = start_up(given.repeats)
    exponents = {
        workload: exponent([row for row in rows if row.workload == workload], nothing.wall_s) for workload in chosen
    }
    print(f"a run of one request: {nothing.wall_s:.2f} s, {nothing.peak_mib:.0f} MiB")
    for workload, power in exponents.items():
        if power is not None:
            print(f"{workload}: time less that grows with requests to the {power:.3f}")
    twice = doubling(DOUBLED, given.repeats) if "fixed" in chosen and given.check else None
    if twice is not None:
        print(f"twice the output tokens, no table of steps: {twice.once_s:.2f} -> {twice.twice_s:.2f} CPU s")
    if given.json is not None:
        document = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "commit": commit(),
            "versions": versions(),
            "start_up": {"wall_s": nothing.wall_s, "cpu_s": nothing.cpu_s, "peak_mib": nothing.peak_mib},
            "exponents": exponents,
            "doubling": None if twice is None else asdict(twice),
            "rows": [asdict(row) for row in rows],
        }
        given.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    faults = list(missed(rows, exponents, twice)) if given.check else []
    for fault in faults:
        print(f"missed: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
