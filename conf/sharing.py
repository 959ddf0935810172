"""How the models of a run share the GPU, and what cannot be shared like that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conf.schema import Settings
from policies.policy import Policy
from policies.serving.tenancy import Mig, Mps, Sharing, TemporalSharing
from policies.setup import ServedModel
from policies.types import GIB

GH200_SLICES_GIB = (12, 24, 48, 96)
"""Memory of MIG slices of a GH200 of 96 GB.

Source: profiles 1g.12gb, 2g.24gb, 3g.48gb, 4g.48gb and 7g.96gb in the configuration of NVIDIA's MIG manager.
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
    serving, world, link = settings.serving, settings.backend.world, settings.hardware.link
    if world != "sim":
        yield f"backend.world={world} runs models in turns only; run it with python -m sim"
    if settings.mix.experts is not None:
        yield f"mix={settings.mix.name} is one model of experts; choose another mix"
    if settings.compute != "roofline":
        yield f"compute={settings.compute} does not say what of the GPU a step keeps busy; set compute=roofline"
    if (link.prefill_compute_slowdown, link.prefill_copy_slowdown) != (None, None):
        yield "a step with prompts is slowed like any other; set both hardware.link.prefill_*_slowdown to null"
    if serving.share_idle_kv:
        yield "every model has its own KV cache; set serving.share_idle_kv=false"
    if serving.scheduler == "vllm_v1" and serving.async_scheduling:
        yield "steps are not launched ahead; set serving.async_scheduling=false"
    if policy.keeps_kv_on_host:
        yield "a policy that keeps KV cache in host memory is simulated alone on the GPU only; leave it out of compare"


def slices(models: Sequence[ServedModel], hardware: str) -> str | None:
    """Say whether a GH200 of 96 GB could be divided into MIG slices for these models; ``None`` for another GPU."""
    if hardware not in ("gh200_paper", "gh200_measured"):
        return None
    whole = GH200_SLICES_GIB[-1]
    least = [_least_gib((model.shape.total_bytes + model.activation_bytes) / GIB) for model in models]
    named = ", ".join(f"{model.shape.name} {gib} GB" for model, gib in zip(models, least, strict=True))
    verdict = "shares are taken as they are"
    if sum(least) > whole:
        verdict = f"more than the {whole} GB of a GH200, which cannot be divided like this; {verdict}"
    return f"the smallest MIG slices that hold the weights: {named}: {verdict}"


def _least_gib(needed_gib: float) -> int:
    """Memory of the smallest slice that holds so much."""
    return next((gib for gib in GH200_SLICES_GIB if gib > needed_gib), GH200_SLICES_GIB[-1])
