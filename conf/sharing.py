"""How the models of a run share the GPU, and what cannot be shared like that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conf.schema import Settings
from policies.policy import Policy
from policies.serving.tenancy import Mig, Mps, Sharing, TemporalSharing
from policies.setup import ServedModel
from policies.types import GIB

MIG_GIB = {1: 12, 2: 24, 3: 48, 4: 48, 7: 96}
"""MIG profiles of a GH200 of 96 GB: GB that come with so many of its seven slices of SMs.

Source: profiles 1g.12gb to 7g.96gb of NVIDIA's mig-parted.
"""


def sharing(settings: Settings, models: Sequence[ServedModel], policy: Policy) -> Sharing:
    """Make the way of sharing that the configuration names.

    Raises:
        ValueError: a number is out of range, or something is asked for that only works in turns.
    """
    tenancy = settings.tenancy
    if tenancy.kind == "temporal":
        return TemporalSharing(
            quantum_s=tenancy.quantum_s,
            order=tenancy.order,
            priorities=tuple(model.priority for model in models),
        )
    for what in _only_in_turns(settings, policy):
        raise ValueError(f"tenancy.kind={tenancy.kind}: {what}; or take tenancy=temporal")
    if tenancy.kind == "mps":
        return Mps(interference=tenancy.interference)
    shares = tenancy.shares or tuple(model.share for model in models)
    if len(shares) != len(models):
        raise ValueError(f"tenancy.shares has {len(shares)} numbers for {len(models)} models; give one a model")
    return Mig(shares=shares)


def _only_in_turns(settings: Settings, policy: Policy) -> Iterator[str]:
    """What models that run side by side cannot have, with the mend."""
    serving, world = settings.serving, settings.backend.world
    if world != "sim":
        yield f"backend.world={world} runs models in turns only; run it with python -m sim"
    if settings.mix.experts is not None:
        yield f"mix={settings.mix.name} is one model of experts; choose another mix"
    if settings.compute != "roofline":
        yield f"compute={settings.compute} does not say what of the GPU a step keeps busy; set compute=roofline"
    if serving.share_idle_kv:
        yield "every model has its own KV cache; set serving.share_idle_kv=false"
    if serving.scheduler == "vllm_v1" and serving.async_scheduling:
        yield "steps are not launched ahead; set serving.async_scheduling=false"
    if policy.keeps_kv_on_host:
        yield "a policy that keeps KV cache in host memory is simulated alone on the GPU only; leave it out of compare"


def slices(models: Sequence[ServedModel]) -> str:
    """Say whether a GH200 of 96 GB could be divided into MIG slices that hold these models."""
    needs_gib = [_least_gib((model.shape.total_bytes + model.activation_bytes) / GIB) for model in models]
    names = ", ".join(f"{model.shape.name} {gib} GB" for model, gib in zip(models, needs_gib, strict=True))
    whole = max(MIG_GIB.values())
    if sum(needs_gib) <= whole:
        return f"MIG: the smallest slices would be {names}; shares are taken as they are"
    return f"MIG: the smallest slices would be {names}, more than {whole} GB: shares no GH200 can be divided into"


def _least_gib(needed_gib: float) -> int:
    """Memory of the smallest slice that holds so much."""
    return min((gib for gib in MIG_GIB.values() if gib > needed_gib), default=max(MIG_GIB.values()))
