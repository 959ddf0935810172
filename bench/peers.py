"""How fast the simulator is beside others, on the same work in turn: ours, theirs, ours, theirs, ...

    python3 -m venv ../peers && ../peers/bin/pip install --pre aisimulate vllm-sr-sim
    python -m bench.peers --python ../peers/bin/python
    python -m bench.peers --python ../peers/bin/python --requests 100000 --rounds 1

The work is 512 prompt and 128 output tokens, 4 requests/s, one replica on an H100, each simulator
with a model that it knows. Those that are not installed are listed with figures measured earlier
(``PUBLISHED``), on another day and another machine: for the order of magnitude alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from bench.child import Spent, spent_by
from bench.simulator import simulated
from bench.workloads import FIXED

FEW, MANY = 1_000, 10_000

VLLM_SR_SIM = """
import sys
from fleet_sim.core.fleet import Fleet, FleetConfig, PoolConfig
from fleet_sim.gpu_profiles.profiles import H100_80GB
from fleet_sim.workload.trace import TraceWorkload

fleet = Fleet(FleetConfig(pools=[PoolConfig("only", H100_80GB, 1, 4096)], router_type="LengthRouter"))
fleet.run(TraceWorkload(sys.argv[1], "splitwise").generate()).print_summary()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another simulator.

    Attributes:
        package: that its Python must have.
        models: what it does, where that is less than ours.
        command: that simulates so many requests, given its Python; may write to the folder.
    """

    name: str
    package: str
    models: str
    command: Callable[[Path, int, Path], list[str]]

    def is_installed(self, python: Path) -> bool:
        """Whether its package is there."""
        script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({self.package!r}) is None)"
        return python.exists() and subprocess.run([python, "-c", script], check=False).returncode == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Figures of a simulator measured earlier: 10,000 requests of the same work as a whole process."""

    name: str
    wall_s: float
    peak_mib: int
    cpu_ms_per_extra: float
    note: str = ""
    seconds_of_100_000: float | None = None
    """CPU or wall seconds, whichever is less, where it was measured."""


PUBLISHED = (
    Published(name="vidur", wall_s=24.2, peak_mib=1064, cpu_ms_per_extra=2.16, note="metrics off: 13.9 s"),
    Published(name="splitwise-sim", wall_s=11.1, peak_mib=223, cpu_ms_per_extra=0.97),
    Published(name="DistServe", wall_s=10.3, peak_mib=750, cpu_ms_per_extra=1.02),
    Published(name="TokenSim", wall_s=6.9, peak_mib=460, cpu_ms_per_extra=0.69),
    Published(
        name="BLIS",
        wall_s=2.97,
        peak_mib=157,
        cpu_ms_per_extra=0.335,
        note="100,000 requests: 35.8 CPU s, 1.56 GB",
        seconds_of_100_000=35.8,
    ),
    Published(
        name="AISimulate",
        wall_s=3.45,
        peak_mib=200,
        cpu_ms_per_extra=0.155,
        note="100,000 requests: 20.4 s, 360 MB",
        seconds_of_100_000=20.4,
    ),
    Published(
        name="vllm-sr-sim", wall_s=0.22, peak_mib=29, cpu_ms_per_extra=0.014, note="no steps, blocks or preemption"
    ),
)
"""Measured on 2026-11-29 on two cores of an AMD EPYC."""


def aisimulate(python: Path, n_requests: int, folder: Path) -> list[str]:
    """Write its configuration; it draws its own arrivals."""
    document = {
        "engine": {
            "mode": "aggregated",
            "backend": "vllm",
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": "h100_sxm",
            "workers": {"aggregated": {"scheduler": {"max_sequences": 256, "max_batched_tokens": 8192}}},
        },
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": 512, "output_tokens": 128},
            "load": {"type": "poisson", "requests_per_second": 4.0, "seed": 7},
            "stop": {"requests": n_requests},
        },
    }
    path = folder / "aisimulate.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")  # which is YAML, too
    return [str(python), "-m", "aisimulate", "predict", "-c", str(path), "--output-dir", str(folder / "prediction")]


def vllm_sr_sim(python: Path, n_requests: int, folder: Path) -> list[str]:
    """Write its trace and a script: its command line draws lengths and cannot fix them."""
    path, script = folder / "trace.csv", folder / "run.py"
    arrivals_s = np.random.default_rng(7).exponential(1 / 4.0, n_requests).cumsum()
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["timestamp", "num_prefill_tokens", "num_decode_tokens"])
        rows.writerows((f"{at_s:.9f}", 512, 128) for at_s in arrivals_s)
    script.write_text(VLLM_SR_SIM, encoding="utf-8")
    return [str(python), str(script), str(path)]


PEERS = (
    Peer(name="AISimulate", package="aisimulate", models="steps and blocks, in Rust", command=aisimulate),
    Peer(
        name="vllm-sr-sim",
        package="fleet_sim",
        models="requests only: no steps, blocks or preemption",
        command=vllm_sr_sim,
    ),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians of a simulator's runs with few and with many requests."""

    few: Spent
    many: Spent
    n_many: int

    @property
    def cpu_ms_per_extra(self) -> float:
        """CPU time of one request more."""
        return (self.many.cpu_s - self.few.cpu_s) / (self.n_many - FEW) * 1000


def ours(n_requests: int) -> Spent:
    """Time this simulator."""
    with TemporaryDirectory() as folder:
        return simulated(FIXED.command_line(n_requests), Path(folder))


def theirs(peer: Peer, python: Path, n_requests: int) -> Spent:
    """Time another one."""
    with TemporaryDirectory() as folder:
        return spent_by(peer.command(python, n_requests, Path(folder)), folder=Path(folder))


def in_turn(peer: Peer, python: Path, rounds: int, n_many: int) -> tuple[Cost, Cost]:
    """Time both, ours and theirs alternating; the first round warms up and is not counted."""
    runs: dict[tuple[bool, int], list[Spent]] = {}
    for counted in [False] + [True] * rounds:
        for n_requests in (FEW, n_many):
            pair = ours(n_requests), theirs(peer, python, n_requests)
            if counted:
                for is_ours, spent in zip((True, False), pair, strict=True):
                    runs.setdefault((is_ours, n_requests), []).append(spent)
    our_cost, their_cost = (Cost(middle(runs[who, FEW]), middle(runs[who, n_many]), n_many) for who in (True, False))
    return our_cost, their_cost


def middle(runs: Sequence[Spent]) -> Spent:
    """Take medians, one figure at a time."""
    return Spent(
        wall_s=median(run.wall_s for run in runs),
        seen_s=None,
        cpu_s=median(run.cpu_s for run in runs),
        peak_mib=median(run.peak_mib for run in runs),
        printed="",
    )


def line(name: str, wall_s: float, peak_mib: float, cpu_ms: float, note: str) -> str:
    """Write a row of the table."""
    return f"{name:<22} {wall_s:>8.2f} {peak_mib:>7.0f} {cpu_ms:>10.3f}  {note}"


def main(arguments: Sequence[str]) -> int:
    """Carry out the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that has the others")
    parser.add_argument("--rounds", type=int, default=3, help="that are counted")
    parser.add_argument("--requests", type=int, default=MANY, help=f"more than {FEW:,}; default {MANY:,}")
    given = parser.parse_args(arguments)
    if given.requests <= FEW:
        parser.error(f"--requests={given.requests} must be more than {FEW}")
    python = given.python.absolute()
    ours_now: Cost | None = None
    installed = [peer for peer in PEERS if peer.is_installed(python)]
    print(f"{given.requests:,} requests   {'':<4} {'wall s':>8} {'MiB':>7} {'CPU ms per extra request':>10}")
    for peer in installed:
        our, their = in_turn(peer, python, given.rounds, given.requests)
        ours_now = our
        print(line("ours", our.many.wall_s, our.many.peak_mib, our.cpu_ms_per_extra, "measured now"))
        print(line(peer.name, their.many.wall_s, their.many.peak_mib, their.cpu_ms_per_extra, peer.models))
        print(
            f"  {peer.name} takes {their.many.wall_s / our.many.wall_s:.2f} times our wall time, "
            f"{their.cpu_ms_per_extra / our.cpu_ms_per_extra:.2f} times our CPU per extra request",
            flush=True,
        )
    print("measured on 2026-11-29 with 10,000 requests, and in how many of our times now:")
    for known in PUBLISHED:
        if known.name not in {peer.name for peer in installed}:
            print(line(known.name, known.wall_s, known.peak_mib, known.cpu_ms_per_extra, known.note))
        if ours_now is not None:
            print("".join(f"  {text}" for text in ratios(known, ours_now)))
    return 0


def ratios(known: Published, our: Cost) -> Iterator[str]:
    """Tell how many times our time another one took, as far as it was measured with as many requests."""
    if our.n_many == MANY:
        yield f"{known.name} took {known.wall_s / our.many.wall_s:.1f} times our wall time,"
        yield f"{known.cpu_ms_per_extra / our.cpu_ms_per_extra:.1f} times our CPU per extra request"
    elif our.n_many == 100_000 and known.seconds_of_100_000 is not None:
        yield f"{known.name} took {known.seconds_of_100_000 / our.many.wall_s:.1f} times our wall time,"
        yield f"{known.seconds_of_100_000 / our.many.cpu_s:.1f} times our CPU"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
