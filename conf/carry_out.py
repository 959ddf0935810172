"""One run: a system under a workload, from frozen settings to a folder of results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from conf.build import Run, backend_factory
from policies.engine import Engine, Outcome
from policies.errors import Stuck
from policies.lane import Lane, TrueLengths
from policies.setup import open_lanes, open_ledger
from traces.folder import ModelInfo, RunInfo
from traces.metrics import write_summary
from traces.results import RunWriter


def carry_out(run: Run, folder: Path) -> Path:
    """Serve the run's workload and leave tables and summary in the folder.

    Returns:
        The folder.

    Raises:
        ValueError: the trace is faulty, or the folder cannot be written; it is marked incomplete.
        Stuck: requests are left that can never run.
    """
    with RunWriter(folder, run_info(run)) as writer:
        engine, lanes = open_engine(run, writer)
        outcome = engine.run(run.workload.arrivals())
        for lane in lanes:
            writer.outlived(lane.index, lane.scheduler.live())
        if outcome is Outcome.STUCK:
            left = sum(1 for lane in lanes for _ in lane.scheduler.live())
            raise Stuck(f"{run.system}: {left} requests can never run; raise the shares of the mix or the swap space")
    write_summary(folder)
    return folder


def open_engine(run: Run, writer: RunWriter) -> tuple[Engine, list[Lane]]:
    """Put a world, its memory and its schedulers together."""
    settings, truth = run.settings, TrueLengths()
    backend = backend_factory(settings.backend.world)(
        [model.shape for model in run.models],
        run.hardware,
        roofline=asdict(settings.hardware.roofline),
        flops_per_s=settings.hardware.flops_per_s,
        vmm=asdict(settings.hardware.vmm),
        vmm_mode=settings.backend.vmm,
        compute_slowdown=settings.hardware.link.compute_slowdown,
    )
    ledger = open_ledger(run.models, run.hardware)
    lanes = open_lanes(
        run.models,
        ledger,
        run.hardware,
        settings.serving,
        preemption=run.policy.preemption,
        truth=truth,
    )
    engine = Engine(
        lanes=lanes,
        truth=truth,
        policy=run.policy,
        tenancy=run.tenancy,
        ledger=ledger,
        backend=backend,
        hardware=run.hardware,
        journal=writer,
        leaps=settings.backend.leaps,
    )
    return engine, lanes


def run_info(run: Run) -> RunInfo:
    """What results say of a run."""
    settings = run.settings
    return RunInfo(
        system=run.system,
        mix=settings.mix.name,
        lengths=run.lengths,
        rate_per_s=settings.arrivals.rate,
        seed=settings.seed,
        models=tuple(
            ModelInfo(name=model.shape.name, block_bytes=model.shape.block_bytes(settings.serving.block_tokens))
            for model in run.models
        ),
        hbm_bytes=run.hardware.hbm_bytes,
        device=f"{run.hardware.name} ({settings.backend.world})",
        config=run.config,
    )
