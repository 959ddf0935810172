"""The worlds in which a run can take place: how each makes its backend, and what it is called.

A world's factory is imported when it is used, so that no world needs the other's libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from conf.run import Run
from conf.schema import ExpertsModel, Settings
from policies.backend import Backend
from policies.lane import Lane
from policies.memory.ledger import Ledger
from policies.moe_setup import ServedMoe
from policies.policy import OffloadsExperts, Policy
from traces.measured.device_tables import table_path
from traces.measured.expert_tables import expert_table_path
from traces.measured.layer_profile import is_layer_profile

if TYPE_CHECKING:
    from executor.mixture.plan import MoePlan
    from executor.plan import Plan
    from sim.compute.moe import MoeCompute
    from traces.results.copies import CopyLog


TABLES = Path(__file__).parent / "tables"
"""Compute times that were measured: a folder a device, a file a model."""

OPS_GPUS = {
    "a100_80": "a100_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_pcie80": "h100_pcie",
    "h100_sxm": "h100_sxm",
    "h200": "h200_sxm",
    "h200_pcie": "h200_sxm",
    "h200_peer": "h200_sxm",
    "h200_sxm": "h200_sxm",
    "l40s": "l40s",
}
"""Hardware by name: what aiconfigurator-core calls its GPU."""


def check_world(run: Run, ledger: Ledger, lanes: Sequence[Lane]) -> None:
    """Find out whether the run's world can be opened, before any run has started.

    Raises:
        ValueError: a constant of the machine is out of range, or this machine is not one that can do it.
    """
    world = run.settings.backend.world
    if world == "sim":
        _simulated(run)
        return
    if what := _only_simulated(run.policy):
        (name,) = cast("Mapping[str, object]", run.config["policy"])
        raise ValueError(
            f"policy {name} {what}, which only the simulator can do; "
            "run it with python -m sim, or leave it out of compare"
        )
    if run.settings.parallel.backend != "loky" or run.settings.parallel.jobs != 1:
        raise ValueError(f"backend.world={world} has one device; set parallel.jobs=1")
    from executor.factory import check

    check(world, _any_plan(run, ledger, lanes))


def _only_simulated(policy: Policy) -> str | None:
    """What a policy does that the executor cannot."""
    if policy.keeps_kv_on_host:
        return "keeps KV cache of running requests in host memory"
    if isinstance(policy, OffloadsExperts) and not policy.lends:
        return "fetches experts once the router has asked for them"
    return None


def open_world(
    run: Run, ledger: Ledger, lanes: Sequence[Lane], copies: CopyLog | None = None
) -> AbstractContextManager[Backend]:
    """Open the backend that the run asks for; leaving it gives everything back.

    Args:
        copies: takes note of what crosses a simulated link.

    Raises:
        ValueError: it cannot be opened.
    """
    world = run.settings.backend.world
    if world == "sim":
        return nullcontext(_simulated(run, copies))
    from executor.factory import open_backend

    return open_backend(world, _any_plan(run, ledger, lanes))


def device_of(run: Run) -> str:
    """What computes, in words; in a simulation the hardware that is modelled."""
    name, world = run.hardware.name, run.settings.backend.world
    if world == "sim":
        return f"{name} ({world})"
    from executor.devices import describe

    return f"{describe(world)} as {name}"


def tables_of(settings: Settings) -> Path | None:
    """Find the measured tables that compute times are taken from; ``None``: they come from elsewhere."""
    if settings.compute != "table":
        return None
    return TABLES / settings.hardware.name if settings.compute_tables is None else Path(settings.compute_tables)


def table_files(run: Run) -> list[Path]:
    """Find the files of measured compute times that a run reads; none if they come from elsewhere."""
    folder = tables_of(run.settings)
    if folder is None:
        return []
    if run.moe is not None:
        return [expert_table_path(folder, run.moe.shape.name, run.moe.n_ranks)]
    if is_layer_profile(folder):
        return sorted(folder.glob("tp1/*.csv"))
    return [table_path(folder, model.shape.name) for model in run.models]


def ops_gpu_of(settings: Settings) -> str | None:
    """Find the GPU whose operations aiconfigurator-core measured; ``None``: compute times come from elsewhere.

    Raises:
        ValueError: it is not known which GPU the hardware is.
    """
    if settings.compute != "aiconfigurator":
        return None
    gpu = settings.compute_tables or OPS_GPUS.get(settings.hardware.name)
    if gpu is None:
        raise ValueError(
            f"compute=aiconfigurator knows no {settings.hardware.name}; set compute_tables to the GPU that is closest, "
            "as h100_sxm or h200_sxm, or compute=roofline"
        )
    return gpu


def _simulated(run: Run, copies: CopyLog | None = None) -> Backend:
    from sim.factory import open_backend

    settings, link = run.settings, run.settings.hardware.link
    if settings.mix.experts is not None:
        return _simulated_experts(run, settings.mix.experts)
    return open_backend(
        [model.shape for model in run.models],
        run.hardware,
        roofline=asdict(settings.hardware.roofline),
        flops_per_s=settings.hardware.flops_per_s,
        tables=tables_of(settings),
        ops_gpu=ops_gpu_of(settings),
        vmm=asdict(settings.hardware.vmm),
        vmm_mode=settings.backend.vmm,
        compute_slowdown=link.compute_slowdown,
        copy_slowdown=link.copy_slowdown,
        prefill_slowdowns=(link.prefill_compute_slowdown, link.prefill_copy_slowdown),
        compute_deviation=settings.compute_deviation,
        seed=settings.seed,
        copies=copies,
        sharing=run.tenancy,
    )


def _simulated_experts(run: Run, experts: ExpertsModel) -> Backend:
    from sim.moe_factory import open_moe_backend

    policy = run.policy
    return open_moe_backend(
        compute_of(run, experts),
        experts.shape,
        run.hardware,
        compute_slowdown=run.settings.hardware.link.compute_slowdown,
        ranks=asdict(experts.ranks),
        routing=_routing(experts),
        away=policy.cap if isinstance(policy, OffloadsExperts) and not policy.lends else None,
        compute_deviation=run.settings.compute_deviation,
        seed=run.settings.seed,
    )


def compute_of(run: Run, experts: ExpertsModel) -> MoeCompute:
    """Make the compute times of one rank of a mixture of experts.

    Raises:
        ValueError: there are none of this kind, or a constant is out of range.
    """
    from sim.moe_factory import moe_compute

    settings = run.settings
    if settings.compute == "aiconfigurator":
        raise ValueError("compute=aiconfigurator knows no experts of ranks; set compute=roofline, or table")
    return moe_compute(
        experts.shape,
        run.hardware,
        roofline=asdict(settings.hardware.roofline),
        flops_per_s=settings.hardware.flops_per_s,
        tables=tables_of(settings),
        ranks=asdict(experts.ranks),
        routing=_routing(experts),
    )


def _routing(experts: ExpertsModel) -> dict[str, object]:
    return {key: value for key, value in asdict(experts.routing).items() if value not in (None, ())}


def _any_plan(run: Run, ledger: Ledger, lanes: Sequence[Lane]) -> Plan | MoePlan:
    return _plan(run, ledger, lanes) if run.moe is None else _moe_plan(run, run.moe, ledger, lanes)


def _plan(run: Run, ledger: Ledger, lanes: Sequence[Lane]) -> Plan:
    from executor.plan import plan

    backend = run.settings.backend
    return plan(
        tuple(run.settings.mix.models.values()),
        ledger,
        [lane.layout for lane in lanes],
        run.hardware,
        run.settings.serving,
        vmm=backend.vmm,
        preemption=run.policy.preemption,
        lendable=[range(model.shape.n_layers) if run.policy.lends else () for model in run.models],
        weights=backend.weights,
        seed=run.settings.seed,
        tier=backend.tier,
        peer=backend.peer,
        n_ranks=backend.ranks,
        rank_timeout_s=backend.rank_timeout_s,
    )


def _moe_plan(run: Run, moe: ServedMoe, ledger: Ledger, lanes: Sequence[Lane]) -> MoePlan:
    from executor.mixture.plan import plan_moe

    backend, settings = run.settings.backend, run.settings
    return plan_moe(
        moe,
        ledger,
        lanes[0],
        run.hardware,
        settings.serving,
        vmm=backend.vmm,
        weights=backend.weights,
        seed=settings.seed,
        rank_timeout_s=backend.rank_timeout_s,
    )
