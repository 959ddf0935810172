"""One run: a system under a workload, from frozen settings to a folder of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from conf.alone import alone_in
from conf.run import Run, run_info
from policies.backend import Backend
from policies.engine import Engine, Outcome
from policies.errors import Stuck
from policies.lane import Lane, TrueLengths
from policies.setup import open_lanes, open_ledger
from traces.folder import discard, is_complete
from traces.metrics import write_summary
from traces.results import RunWriter

WORLDS = {"sim": "sim.factory"}
"""Where each world makes its backend; imported when it is used, so that no world needs the other's libraries."""

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
    with RunWriter(folder, run_info(run), tables=("requests", "gaps", *run.settings.tables)) as writer:
        engine, lanes = open_engine(run, writer)
        outcome = engine.run(run.workload.arrivals())
        for lane in lanes:
            writer.outlived(lane.index, lane.scheduler.live())
        if outcome is Outcome.STUCK:
            left = sum(1 for lane in lanes for _ in lane.scheduler.live())
            raise Stuck(f"{run.system}: {left} requests can never run; raise the shares of the mix or the swap space")
    write_summary(folder)
    return folder


def backend_factory(world: str) -> Callable[..., Backend]:
    """Find what makes the backend of a world."""
    return import_module(WORLDS[world]).open_backend


def open_world(run: Run) -> Backend:
    """Open the backend that the run asks for.

    Raises:
        ValueError: a constant of the machine is out of range.
    """
    settings = run.settings
    return backend_factory(settings.backend.world)(
        [model.shape for model in run.models],
        run.hardware,
        roofline=asdict(settings.hardware.roofline),
        flops_per_s=settings.hardware.flops_per_s,
        vmm=asdict(settings.hardware.vmm),
        vmm_mode=settings.backend.vmm,
        compute_slowdown=settings.hardware.link.compute_slowdown,
    )


def open_engine(run: Run, writer: RunWriter) -> tuple[Engine, list[Lane]]:
    """Put a world, its memory and its schedulers together."""
    settings, truth = run.settings, TrueLengths()
    ledger = open_ledger(run.models, run.hardware)
    lanes = open_lanes(
        run.models,
        ledger,
        run.hardware,
        settings.serving,
        preemption=run.policy.preemption,
    )
    engine = Engine(
        lanes=lanes,
        truth=truth,
        policy=run.policy,
        tenancy=run.tenancy,
        ledger=ledger,
        backend=open_world(run),
        hardware=run.hardware,
        journal=writer,
        leaps=settings.backend.leaps,
        use_every_ns=SAMPLE_EVERY_NS if "memory" in settings.tables else None,
    )
    return engine, lanes
