"""A device's run played again in a simulated world: with its own decisions, and with step times off as its own were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from conf.carry_out import open_books, open_engine
from conf.garbage import seldom_collected
from conf.run import Run, run_info
from conf.worlds import open_world
from policies.engine import Outcome
from policies.memory.ledger import Ledger
from sim.validation.compare import Compared, Tolerance, decode_step_ns
from sim.validation.deviations import Deviating, Deviations, deviations
from sim.validation.judge import Judged, judge, table
from sim.validation.record import record_of
from sim.validation.retimed import retimed
from sim.validation.same_decisions import Departed, Retold, SameDecisions
from sim.validation.unheard import Unheard
from traces.results.folder import RunTables, read_run
from traces.results.metrics import Figures, summarise
from traces.results.results import RunWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of it.

    Attributes:
        judged: every figure that has a tolerance; empty if nothing was played, or the run departed.
        departed: where the run's own step times did not lead to its decisions.
    """

    judged: tuple[Judged, ...] = ()
    departed: str | None = None

    @property
    def text(self) -> str:
        """For a person; empty if nothing was played."""
        if self.departed:
            return f"\nStep times were not told apart from decisions: {self.departed}\n"
        return f"\n{table(self.judged)}\n" if self.judged else ""


def play(
    real: RunTables, run: Run, found: Sequence[Compared], tolerances: Mapping[str, Tolerance], n_replays: int
) -> Played:
    """Play a run again, its steps alone and in replays; nothing if none are wanted.

    Args:
        run: the same with its recorded requests, in a simulated world, without leaps.
        found: its simulation held against it.

    Raises:
        ValueError: its tables do not tell enough.
    """
    if not n_replays:
        return Played()
    try:
        retold = steps_of(real, run)
    except Departed as departed:
        return Played(departed=str(departed))
    figures = summarise(real).total
    wanted = [(each.request, each.n_output_tokens) for each in run.workload.arrivals()]
    steps = retimed(figures, retold, {each.request_id: (each.arrival_ns, n_tokens) for each, n_tokens in wanted})
    off = deviations(retold)
    replays = [replay(run, off, number) for number in range(n_replays)]
    return Played(judged=tuple(judge(found, figures, steps, replays, decode_step_ns(real), tolerances)))


def steps_of(real: RunTables, run: Run) -> list[Retold]:
    """Take a run's decisions again, and ask the simulated world for the time of every step.

    Args:
        run: the same, in a simulated world.

    Raises:
        Departed: the run's step times do not lead to its decisions.
        ValueError: its tables do not tell enough.
    """
    if run.moe is not None:
        raise ValueError(f"{real.folder} has experts, whose copies its tables do not tell; set --replays 0")
    record = record_of(real, [model.shape.layer_bytes for model in run.models])
    ledger, lanes = open_books(run)
    with open_world(run, ledger, lanes) as world, seldom_collected():
        backend = SameDecisions(record, world, _cycles(ledger))
        outcome = open_engine(run, ledger, lanes, backend, Unheard()).run(run.workload.arrivals())
    if outcome is not Outcome.DONE or len(backend.retold) < len(record.steps):
        raise Departed(f"the run's own step times lead to {len(backend.retold):,} of its {len(record.steps):,} steps")
    return backend.retold


def replay(run: Run, found: Deviations, number: int) -> Figures:
    """Simulate the run once, with step times off as they were found to be."""
    ledger, lanes = open_books(run)
    with TemporaryDirectory() as kept, open_world(run, ledger, lanes) as world:
        folder = Path(kept) / "replay"
        backend = Deviating(world, found, _cycles(ledger), f"replay {number}")
        with RunWriter(folder, run_info(run), tables=("requests", "gaps", "steps")) as writer, seldom_collected():
            open_engine(run, ledger, lanes, backend, writer).run(run.workload.arrivals())
        return summarise(read_run(folder)).total


def _cycles(ledger: Ledger) -> Callable[[int], bool]:
    return lambda lane: bool(ledger.residencies[lane].cycling)
