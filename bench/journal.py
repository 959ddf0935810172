"""What keeping results costs: the facts of a real run, told again to a ``RunWriter`` and timed.

    python -m bench.journal --requests 10000 --repeats 10

The run (512 prompt and 128 output tokens, 4 requests/s) is simulated once, each of its facts is
kept in memory, and all of them are told ``repeats`` times over: so the time is that of the results
side alone, its files included, a request.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from hydra import compose, initialize_config_module

from bench.workloads import FIXED, Timed
from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import open_books, open_engine
from conf.run import Run, run_info
from conf.worlds import open_world
from policies.backend import Batch, StepReport
from policies.journal import GapCause
from policies.serving.scheduler import Scheduler
from policies.serving.sequence import Sequence
from traces.results.metrics import write_summary
from traces.results.results import RunWriter
from traces.results.rows import TableName

TABLES: tuple[TableName, ...] = ("requests", "steps", "decisions", "gaps")
"""All but the memory timeline."""


class Tape(RunWriter):
    """Keeps the calls of a run instead of their rows."""

    def __init__(self, folder: Path, run: Run) -> None:
        super().__init__(folder, run_info(run), tables=("requests", "gaps"))
        self.n_requests = 0
        self.n_submissions = 0
        self.n_steps = 0
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Keep the call."""
        self.n_submissions += 1
        self.n_steps += len(report.ends_ns)
        self.calls.append(("ran", (lane, batch, report)))

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Keep the call."""
        self.calls.append(("gaps", (model, cause, gaps_ns, n_requests)))

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:
        """Keep the call."""
        self.n_requests += len(seqs)
        self.calls.append(("retired", (lane, now_ns, seqs, scheduler)))


class Counting(RunWriter):
    """Counts submissions besides."""

    n_submissions = 0

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Keep the steps as ever."""
        self.n_submissions += 1
        super().ran(lane, batch, report)


def only_run(timed: Timed, n_requests: int) -> Run:
    """Compose the run of a workload."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", timed.command_line(n_requests))
    (run,) = build(cfg).runs
    return run


def submissions_per_request(timed: Timed, n_requests: int = 1000) -> float:
    """Count the batches that the engine has run for a request, each for a step or many."""
    run = only_run(timed, n_requests)
    with TemporaryDirectory() as folder, Counting(Path(folder), run_info(run), tables=TABLES) as writer:
        serve(run, writer)
        return writer.n_submissions / n_requests


def serve(run: Run, writer: RunWriter) -> None:
    """Carry out a run's workload, with a writer of ours."""
    ledger, lanes = open_books(run)
    with open_world(run, ledger, lanes) as backend:
        open_engine(run, ledger, lanes, backend, writer).run(run.workload.arrivals())


def record(run: Run, folder: Path) -> Tape:
    """Carry out a run and keep what it tells."""
    tape = Tape(folder, run)
    serve(run, tape)
    return tape


def told(tape: Tape, repeats: int, run: Run, folder: Path) -> None:
    """Tell a new writer all of it, ``repeats`` times, and print what a request took."""
    gc.collect()
    gc.freeze()  # the facts are none of the writer's garbage
    began, cpu_began = perf_counter(), process_time()
    with RunWriter(folder, run_info(run), tables=TABLES) as writer:
        for _ in range(repeats):
            for name, arguments in tape.calls:
                getattr(writer, name)(*arguments)
        told_s = perf_counter() - began
    closed_s = perf_counter() - began
    write_summary(folder)
    all_s, cpu_s = perf_counter() - began, process_time() - cpu_began
    n = repeats * tape.n_requests
    for text, taken_s in (
        ("told", told_s),
        ("tables closed", closed_s - told_s),
        ("summary", all_s - closed_s),
        ("all", all_s),
        ("all, CPU of every thread", cpu_s),
    ):
        print(f"  {text:<25} {taken_s / n * 1e6:7.2f} us a request  {taken_s:8.3f} s")
    print(f"  peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, with the facts themselves")
    for file in sorted(folder.glob("*.parquet")):
        print(f"  {file.name:<20} {file.stat().st_size / n:8.2f} bytes a request")


def main(arguments: Seq[str]) -> int:
    """Carry out the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.journal", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="of the run that is simulated")
    parser.add_argument("--repeats", type=int, default=10, help="how many times its facts are told")
    chosen = parser.parse_args(arguments)
    run = only_run(FIXED, chosen.requests)
    with TemporaryDirectory() as folder:
        tape = record(run, Path(folder) / "simulated")
        print(
            f"{tape.n_requests} requests, {tape.n_submissions} submissions, {tape.n_steps} steps, "
            f"{len(tape.calls)} facts, told {chosen.repeats} times"
        )
        told(tape, chosen.repeats, run, Path(folder) / "told")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
