"""The simulated world of a mixture-of-experts model, made from what describes machine and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policies.memory.experts import ExpertLayout, OffloadCap
from policies.moe import MoeShape
from policies.types import HardwareProfile
from sim.compute.expert_table import ExpertTableModel
from sim.compute.moe import MoeCompute, MoeRoofline, Ranks
from sim.compute.perturbed import PerturbedExperts
from sim.compute.roofline import Roofline
from sim.compute.routing import Routing, by_weights, uniform, zipf
from sim.link import MILLION
from sim.moe_backend import MoeBackend
from sim.on_demand import OnDemandExperts
from sim.staging import StagedExperts, StagingLink
from traces.measured.expert_tables import read_expert_table


def open_moe_backend(
    compute: MoeCompute,
    shape: MoeShape,
    hardware: HardwareProfile,
    *,
    compute_slowdown: float,
    ranks: Mapping[str, Any],
    routing: Mapping[str, Any],
    away: OffloadCap | None = None,
    compute_deviation: float = 0.0,
    seed: int = 0,
) -> MoeBackend:
    """Make the ranks that serve a model.

    Args:
        hardware: of each rank; ranks behind one link to host memory share it.
        compute: times of a rank, see ``moe_compute``.
        compute_slowdown: share by which computation takes longer beside a copy.
        ranks: see ``Ranks``.
        routing: ``kind`` and what that needs, see ``routing_of``.
        away: experts that never have a place, and are fetched when the router asks for them; ``None``: those that
            are offloaded are staged.
        compute_deviation: by how much compute times are off, drawn by ``seed``: see ``Deviation``.

    Raises:
        ValueError: a constant is out of range, or the experts do not divide among the ranks.
    """
    of, chosen = Ranks(**ranks), routing_of(shape, **routing)
    layout = shape.experts(of.n_ranks, hardware.page_bytes)
    bytes_per_s = hardware.link.h2d_bytes_per_s // of.n_per_link
    staging = StagingLink(
        bytes_per_s=bytes_per_s,
        reduce_bytes_per_s=of.reduce_bytes_per_s if of.reduces_over_link else 0,
        splits_regions=of.splits_regions,
        slowdown_ppm=round(compute_slowdown * MILLION),
    )
    if compute_deviation:
        compute = PerturbedExperts(compute, compute_deviation, f"compute {seed}")
    return MoeBackend(
        compute,
        StagedExperts(shape.n_dense_layers, layout.gate_up_bytes, layout.down_bytes, staging),
        group_bytes=layout.group_bytes,
        group_shards=layout.group_shards,
        n_moe_layers=layout.n_layers,
        reload_bytes_per_s=bytes_per_s,
        on_demand=None if away is None else _on_demand(layout, away, chosen, bytes_per_s),
    )


def routing_of(shape: MoeShape, kind: str, *, exponent: float = 0.0, weights: Sequence[float] = ()) -> Routing:
    """Make the routing of a model: ``uniform``, ``zipf`` with an exponent, or a ``histogram`` of weights.

    Raises:
        ValueError: the kind is unknown, or there is not one weight for every expert.
    """
    match kind:
        case "uniform":
            return uniform(shape.n_experts, shape.n_active)
        case "zipf":
            return zipf(shape.n_experts, shape.n_active, exponent)
        case "histogram":
            if len(weights) != shape.n_experts:
                raise ValueError(f"routing.weights are {len(weights)} for {shape.n_experts} experts; give one for each")
            return by_weights(weights, shape.n_active)
        case _:
            raise ValueError(f"routing.kind={kind} must be uniform, zipf or histogram")


def moe_compute(
    shape: MoeShape,
    hardware: HardwareProfile,
    *,
    roofline: Mapping[str, float],
    flops_per_s: int,
    tables: Path | None,
    ranks: Mapping[str, Any],
    routing: Mapping[str, Any],
) -> MoeCompute:
    """Make the compute times of one rank, measured or by constants.

    Args:
        roofline, flops_per_s: fitted constants, see ``Roofline``.
        tables: folder of measured compute times, taken in their place.
        ranks: see ``Ranks``.
        routing: as of ``open_moe_backend``.

    Raises:
        ValueError: a constant is out of range, or the table is not there, faulty, or of another model or other ranks.
    """
    of = Ranks(**ranks)
    if tables is None:
        machine = Roofline(hbm_bytes_per_s=hardware.hbm_bytes_per_s, flops_per_s=flops_per_s, **roofline)
        return MoeRoofline(machine, shape, of, routing_of(shape, **routing))
    if routing["kind"] != "uniform":
        raise ValueError(
            f"compute=table: experts were measured as routers with random weights choose them; with "
            f"routing.kind={routing['kind']} set compute=roofline"
        )
    return ExpertTableModel(read_expert_table(tables, shape, of.n_ranks), of)


def _on_demand(layout: ExpertLayout, away: OffloadCap, routing: Routing, bytes_per_s: int) -> OnDemandExperts:
    return OnDemandExperts(
        routing,
        n_layers=layout.n_eligible_layers,
        n_resident=layout.n_experts - away.shards(layout),
        shard_bytes=layout.shard_bytes,
        bytes_per_s=bytes_per_s,
    )
