"""From a composed configuration to the runs that it asks for, all checked before the first one starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.editable import editable, frozen
from conf.mistakes import one_line
from conf.schema import Hardware, Settings
from policies.backend import Backend
from policies.lane import TrueLengths
from policies.policy import Policy
from policies.serving.tenancy import TemporalSharing
from policies.setup import ServedModel, open_lanes, open_ledger
from policies.types import HardwareProfile, LinkProfile
from traces.workload import Workload, workload

WORLDS = {"sim": "sim.factory"}
"""Where each world makes its backend; imported when it is used, so that no world needs the other's libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system under one workload.

    Attributes:
        system: the policy or variant, as ``compare`` names it.
        lengths: the name of the lengths.
        models: in the order in which results count them.
        settings: all of the configuration, with what this run changes in it.
        config: the same as JSON can hold it.
    """

    system: str
    lengths: str
    policy: Policy
    hardware: HardwareProfile
    models: tuple[ServedModel, ...]
    tenancy: TemporalSharing
    workload: Workload
    settings: Settings
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs to compare: for each lengths and each rate, every system in turn."""

    name: str
    jobs: int
    figures: bool
    runs: tuple[Run, ...]


def build(cfg: DictConfig) -> Experiment:
    """Work out what an experiment runs.

    Raises:
        ValueError, OmegaConfBaseException: a value is missing, unknown, of a wrong type or out of range.
    """
    base = _held_to_schema(cfg)
    if not base.compare or not base.lengths:
        raise ValueError("compare and lengths must each name at least one")
    runs = [
        _run(base, lengths, rate, system)
        for lengths in base.lengths
        for rate in _rates(base, lengths)
        for system in base.compare
    ]
    shared = runs[0].settings
    return Experiment(name=shared.name, jobs=shared.jobs, figures=shared.output.figures, runs=tuple(runs))


def _rates(base: Any, lengths: str) -> list[dict[str, object]]:
    """Changes that give each rate in turn; the narrower setting wins: one rate, rates, rates by lengths."""
    if not OmegaConf.is_missing(base.arrivals, "rate") and base.arrivals.rate is not None:
        return [{}]
    if not base.rates and base.rates_by_lengths and lengths not in base.rates_by_lengths:
        raise ValueError(f"rates_by_lengths has none for lengths={lengths}; add them, or set rates=[...] for all")
    rates = base.rates or base.rates_by_lengths.get(lengths, ())
    return [{"arrivals": {"rate": rate}} for rate in rates] or [{}]


def backend_factory(world: str) -> Callable[..., Backend]:
    """Find what makes the backend of a world."""
    return import_module(WORLDS[world]).open_backend


def _held_to_schema(cfg: DictConfig) -> Any:
    """Hold the configuration against the schema once more: Hydra lets ``+key=value`` past it."""
    return OmegaConf.merge(OmegaConf.structured(editable(Settings)), OmegaConf.to_container(cfg, enum_to_str=True))


def _run(base: Any, lengths: str, rate: Mapping[str, object], system: str) -> Run:
    variant = base.variants.get(system)
    if variant is None:
        return _checked_run(OmegaConf.merge(base, rate), lengths, system, policy=system)
    try:
        return _checked_run(OmegaConf.merge(base, rate, variant.overrides), lengths, system, policy=variant.policy)
    except (ValueError, OmegaConfBaseException) as mistake:
        raise ValueError(f"variants.{system}: {one_line(mistake)}") from None


def _checked_run(cfg: Any, lengths: str, system: str, policy: str) -> Run:
    """Assemble a run, and refuse models that do not fit or could not be served before another run has started."""
    settings = frozen(Settings, OmegaConf.to_object(cfg))
    run = _assemble(cfg, settings, lengths, system, settings.policy[policy])
    ledger = open_ledger(run.models, run.hardware)
    preemption = run.policy.preemption
    open_lanes(run.models, ledger, run.hardware, settings.serving, preemption=preemption, truth=TrueLengths())
    return run


def _assemble(cfg: Any, settings: Settings, lengths: str, system: str, policy: Policy) -> Run:
    models = tuple(settings.mix.models.values())
    return Run(
        system=system,
        lengths=lengths,
        policy=policy,
        hardware=hardware_profile(settings.hardware),
        models=models,
        tenancy=TemporalSharing(
            quantum_s=settings.tenancy.quantum_s,
            order=settings.tenancy.order,
            priorities=tuple(model.priority for model in models),
        ),
        workload=workload(
            arrivals=settings.arrivals,
            lengths=settings.lengths[lengths],
            settings=settings.workload,
            seed=settings.seed,
            shapes=[model.shape for model in models],
        ),
        settings=settings,
        config=cast("dict[str, object]", OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)),
    )


def hardware_profile(hardware: Hardware) -> HardwareProfile:
    """Leave what a server knows of its machine."""
    link = hardware.link
    return HardwareProfile(
        name=hardware.name,
        hbm_bytes=hardware.hbm_bytes,
        hbm_bytes_per_s=hardware.hbm_bytes_per_s,
        page_bytes=hardware.page_bytes,
        link=LinkProfile(
            h2d_bytes_per_s=link.h2d_bytes_per_s,
            d2h_bytes_per_s=link.d2h_bytes_per_s,
            joint_bytes_per_s=link.joint_bytes_per_s,
        ),
    )
