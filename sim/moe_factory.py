"""The simulated world of a mixture-of-experts model, made from what describes machine and model."""

from __future__ import annotations

from policies.memory.experts import ExpertLayout, ExpertResidency
from policies.moe import MoeShape
from policies.types import LinkProfile
from sim.compute.moe import MoeRoofline, Ranks
from sim.compute.roofline import Roofline
from sim.compute.routing import Routing
from sim.moe_backend import MoeBackend
from sim.on_demand import OnDemandExperts
from sim.staging import StagedExperts, StagingLink


def open_moe_backend(
    shape: MoeShape,
    layout: ExpertLayout,
    machine: Roofline,
    ranks: Ranks,
    link: LinkProfile,
    routing: Routing,
    *,
    away: ExpertResidency | None = None,
) -> MoeBackend:
    """Make the ranks that serve a model.

    Args:
        layout: the experts of a rank.
        link: to host memory; ranks behind one share it.
        away: experts that never have a place, and are fetched when the router asks for them; ``None``: those that
            are offloaded are staged.
    """
    bytes_per_s = link.h2d_bytes_per_s // ranks.n_per_link
    staging = StagingLink(
        bytes_per_s=bytes_per_s,
        reduce_bytes_per_s=ranks.reduce_bytes_per_s if ranks.reduces_over_link else 0,
        splits_regions=ranks.splits_regions,
    )
    return MoeBackend(
        MoeRoofline(machine, shape, ranks, routing),
        StagedExperts(shape.n_dense_layers, layout.gate_up_bytes, layout.down_bytes, staging),
        group_bytes=layout.group_bytes,
        group_shards=layout.group_shards,
        n_moe_layers=layout.n_layers,
        reload_bytes_per_s=bytes_per_s,
        on_demand=None if away is None else _on_demand(away, routing, bytes_per_s),
    )


def _on_demand(away: ExpertResidency, routing: Routing, bytes_per_s: int) -> OnDemandExperts:
    layout = away.layout
    return OnDemandExperts(
        routing,
        n_layers=layout.n_eligible_layers,
        n_resident=layout.n_experts - away.cap.shards(layout),
        shard_bytes=layout.shard_bytes,
        bytes_per_s=bytes_per_s,
    )
