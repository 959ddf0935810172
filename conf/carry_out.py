"""One run: a system under a workload, from frozen settings to a folder of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from conf.alone import alone_in
from conf.garbage import seldom_collected
from conf.run import Following, Run, run_info
from conf.worlds import device_of, open_world
from policies.backend import Backend
from policies.engine import Engine, Outcome
from policies.errors import Stuck
from policies.journal import Journal
from policies.lane import Lane, TrueLengths
from policies.memory.ledger import Ledger
from policies.moe_setup import open_moe
from policies.policy import OffloadsExperts
from policies.serving.tenancy import TemporalSharing
from policies.setup import open_lanes, open_ledger
from policies.vamp import Vamp
from traces.results.folder import discard, is_complete
from traces.results.metrics import write_summary
from traces.results.results import RunWriter
from traces.sessions.workload import SessionWorkload

if TYPE_CHECKING:
    from traces.results.copies import CopyLog

SAMPLE_EVERY_NS = 100_000_000
"""How often the use of HBM is kept, besides every change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A run and the folder of its results, which is of this run alone."""

    run: Run
    folder: Path


def complete(place: Place) -> None:
    """Carry the run out, unless its folder holds it complete already.

    What a process left that died or was interrupted is done again. While another process works at it, this waits.

    Raises:
        ValueError, Stuck: as ``carry_out``.
    """
    with alone_in(place.folder):
        if not is_complete(place.folder):
            discard(place.folder)
            carry_out(place.run, place.folder)


def carry_out(run: Run, folder: Path) -> Path:
    """Serve the run's workload and leave tables and summary in the folder.

    Returns:
        The folder.

    Raises:
        ValueError: the trace is faulty, or the folder cannot be written; it is marked incomplete.
        Stuck: requests are left that can never run.
    """
    info = replace(run_info(run), device=device_of(run))
    ledger, lanes = open_books(run)
    tables = ("requests", "gaps", *run.settings.keep)
    copies = _log_of_copies(run)
    with RunWriter(folder, info, tables=tables) as writer, open_world(run, ledger, lanes, copies) as backend:
        engine = open_engine(run, ledger, lanes, backend, writer)
        with seldom_collected():
            outcome = engine.run(run.workload.arrivals())
        for lane in lanes:
            writer.outlived(lane.index, lane.scheduler.live())
        if outcome is Outcome.STUCK:
            left = sum(1 for lane in lanes for _ in lane.scheduler.live())
            raise Stuck(f"{run.system}: {left} requests can never run; raise the shares of the mix or the swap space")
    write_summary(folder)
    if copies is not None:
        _write_timeline(run, copies, folder)
    return folder


def _log_of_copies(run: Run) -> CopyLog | None:
    """What takes note of copies, if the run is to leave a timeline."""
    if not run.settings.timeline.window:
        return None
    from traces.results.copies import CopyLog
    from traces.timeline.timeline import Window

    window = Window.seconds(run.settings.timeline.window)
    return CopyLog(window.from_ns, window.until_ns)


def _write_timeline(run: Run, copies: CopyLog, folder: Path) -> None:
    from traces.results.folder import read_run
    from traces.timeline import write
    from traces.timeline.timeline import Window

    if run.settings.backend.world == "sim":
        copies.write(folder)
    write.write_timeline(read_run(folder), Window.seconds(run.settings.timeline.window), folder / write.NAME)


def open_books(run: Run) -> tuple[Ledger, list[Lane]]:
    """Divide the memory among the run's models, and give each its scheduler.

    Raises:
        ValueError: they do not fit, or cannot be served.
    """
    if run.moe is not None:
        ledger, lane = open_moe(run.moe, run.hardware, run.settings.serving, run.policy)
        return ledger, [lane]
    if isinstance(run.policy, OffloadsExperts):
        raise ValueError(f"{run.system} offloads experts, and mix={run.settings.mix.name} has none")
    ledger = open_ledger(run.models, run.hardware)
    preemption, lends_across = run.policy.preemption, isinstance(run.tenancy, TemporalSharing)
    serving = run.settings.serving
    return ledger, open_lanes(
        run.models, ledger, run.hardware, serving, preemption=preemption, lends_across=lends_across
    )


def open_engine(run: Run, ledger: Ledger, lanes: Sequence[Lane], backend: Backend, journal: Journal) -> Engine:
    """Put a world, its memory and its schedulers together."""
    settings, workload = run.settings, run.workload
    if isinstance(run.policy, Vamp) and run.policy.foresight and isinstance(workload, SessionWorkload):
        for lane in lanes:
            if lane.asking is not None:
                lane.asking.foresees = lambda request_id: workload.loop.is_continued(request_id)
    return Engine(
        lanes=lanes,
        truth=TrueLengths(),
        policy=run.policy,
        tenancy=run.tenancy,
        ledger=ledger,
        backend=backend,
        hardware=run.hardware,
        journal=journal,
        leaps=settings.backend.leaps,
        use_every_ns=SAMPLE_EVERY_NS if "memory" in settings.keep else None,
        follow=workload.follow if isinstance(workload, Following) else None,
    )
