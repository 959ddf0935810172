"""From a composed configuration to the runs that it asks for, all checked before the first one starts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.carry_out import open_books
from conf.editable import editable, frozen
from conf.grid import ONCE, Point, points
from conf.mistakes import one_line
from conf.own_mix import with_own_models
from conf.parallel import Parallel
from conf.run import Requests, Run, decisive, run_info
from conf.schema import Hardware, Settings
from conf.sharing import sharing
from conf.worlds import check_world
from policies.moe_setup import ServedMoe, rank_shape
from policies.ranks import of_rank
from policies.setup import ServedModel
from policies.types import HardwareProfile, LinkProfile
from traces.results.grid import differences
from traces.sessions.workload import SessionWorkload
from traces.workload.agents import Agents
from traces.workload.lengths import LengthSettings
from traces.workload.workload import workload

Configured = tuple[Settings, Mapping[str, object]]
"""A configuration as frozen settings, and as JSON can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Runs to compare: for each point of the grid, each lengths and each rate, every system in turn.

    A run that several points have in common, because they differ in another policy's settings, is there once.
    """

    name: str
    parallel: Parallel
    figures: bool
    page: bool
    settings: Settings
    runs: tuple[Run, ...]


def build(cfg: DictConfig) -> Experiment:
    """Work out what an experiment runs.

    Raises:
        ValueError, OmegaConfBaseException: a value is missing, unknown, of a wrong type or out of range.
    """
    base = held_to_schema(cfg)
    if not (base.compare or base.figure) or not (base.lengths or base.sessions):
        raise ValueError("compare and lengths must each name at least one")
    base.output.folder = cfg.output.folder  # Hydra's choice; each run would work out a time stamp of its own
    runs = _told_apart(list(_runs(base)))
    shared = runs[0].settings if runs else configured(base)[0]
    shared.parallel.require_installed()
    output = shared.output
    return Experiment(
        name=shared.name,
        parallel=shared.parallel,
        figures=output.figures,
        page=output.page,
        settings=shared,
        runs=tuple(runs),
    )


def _told_apart(runs: list[Run]) -> list[Run]:
    """Leave out repetitions, and note in what the runs of a system differ."""
    different: dict[tuple[str, str], Run] = {}
    for run in runs:
        different.setdefault((run.system, json.dumps(run.config)), run)
    grids = differences([run_info(run) for run in different.values()])
    return [replace(run, grid=grid) for run, grid in zip(different.values(), grids, strict=True)]


def _runs(base: Any) -> Iterator[Run]:
    """All runs of all points, and of all points of the grid."""
    if not base.compare:
        return
    grid = cast("dict[str, object]", OmegaConf.to_container(base.grid, resolve=True))
    cfg = base.copy()  # the one that changes: each point sets the same keys, so nothing is left of the last
    for named, combined in product(_named_points(base), points(grid)):
        point = {**named, **combined}
        for lengths in base.sessions or base.lengths:
            for rate in _rates(base, lengths, point):
                for key, value in {**point, **rate}.items():
                    OmegaConf.update(cfg, key, value)
                plain = configured(cfg)
                for system in base.compare:
                    yield _run(cfg, plain, lengths, system)


def _named_points(base: Any) -> list[Point]:
    """The experiment's own points; without any there is an empty one.

    Raises:
        ValueError: they do not set the same keys, or one that an experiment has only once.
    """
    named = cast("list[dict[str, object]]", OmegaConf.to_container(base.points, resolve=True))
    for point in named:
        if set(point) != set(named[0]):
            raise ValueError(f"points: {', '.join(point)} must be the keys of every point: {', '.join(named[0])}")
        if once := sorted({key.partition(".")[0] for key in point} & ONCE):
            raise ValueError(f"points: an experiment has one {once[0]}; vary other keys")
    return list(named) or [{}]


def _rates(base: Any, lengths: str, point: Point) -> list[Point]:
    """Changes that give each rate in turn; the narrower setting wins: one rate, rates, loads, rates by lengths."""
    if (
        base.sessions
        or "arrivals.rate" in point
        or (not OmegaConf.is_missing(base.arrivals, "rate") and base.arrivals.rate is not None)
    ):
        return [{}]
    if not base.rates and base.loads:
        if lengths not in base.saturations:
            raise ValueError(f"loads need saturations.{lengths}; python -m sim saturation finds it")
        return [{"arrivals.rate": float(f"{load * base.saturations[lengths]:.4g}")} for load in base.loads]
    if not base.rates and base.rates_by_lengths and lengths not in base.rates_by_lengths:
        raise ValueError(f"rates_by_lengths has none for lengths={lengths}; add them, or set rates=[...] for all")
    rates = base.rates or base.rates_by_lengths.get(lengths, ())
    return [{"arrivals.rate": rate} for rate in rates] or [{}]


@cache
def schema() -> DictConfig:
    """The settings as OmegaConf holds them, to be copied and filled."""
    return OmegaConf.structured(editable(Settings))


def held_to_schema(cfg: DictConfig) -> Any:
    """Hold the configuration against the schema once more: Hydra lets ``+key=value`` past it."""
    plain = cast("dict[str, Any]", OmegaConf.to_container(cfg, enum_to_str=True))
    return OmegaConf.merge(schema(), with_own_models(plain))


def configured(cfg: Any) -> Configured:
    """Take a whole configuration as it is used, and as it is kept."""
    plain = cast("Mapping[str, object]", OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    return frozen(Settings, OmegaConf.to_object(cfg)), plain


def _run(cfg: Any, plain: Configured, lengths: str, system: str) -> Run:
    variant = plain[0].variants.get(system)
    if variant is None:
        return checked_run(plain, lengths, system, policy=system)
    try:
        changed = configured(OmegaConf.merge(cfg, variant.overrides))
        return checked_run(changed, lengths, system, policy=variant.policy)
    except (ValueError, OmegaConfBaseException) as mistake:
        raise ValueError(f"variants.{system}: {one_line(mistake)}") from None


def checked_run(
    configured: Configured, lengths: str, system: str, policy: str, requests: Requests | None = None
) -> Run:
    """Assemble a run, and refuse models that do not fit or could not be served before another run has started.

    Args:
        requests: what arrives, if it is not to be drawn as the configuration says.
    """
    run = _assemble(*configured, lengths, system, policy, requests)
    check_world(run, *open_books(run))
    return run


def _assemble(
    settings: Settings,
    config: Mapping[str, object],
    lengths: str,
    system: str,
    policy: str,
    requests: Requests | None,
) -> Run:
    if settings.hardware.unified and settings.policy[policy].lends:
        raise ValueError(
            f"{system} lends, and on hardware {settings.hardware.name} host and device have one memory: nothing is "
            "gained; compare policies that do not lend, or take another hardware"
        )
    hardware, moe = hardware_profile(settings.hardware), _served_moe(settings)
    models = _models(settings) if moe is None else (_rank(moe, hardware),)
    return Run(
        system=system,
        lengths=lengths,
        policy=settings.policy[policy],
        hardware=hardware,
        models=models,
        moe=moe,
        tenancy=sharing(settings, models, settings.policy[policy]),
        workload=requests or _requests(settings, lengths, models),
        settings=settings,
        config=decisive(config, lengths, policy),
    )


def _models(settings: Settings) -> tuple[ServedModel, ...]:
    """What one rank holds of each."""
    n_ranks = settings.backend.ranks
    return tuple(replace(model, shape=of_rank(model.shape, n_ranks)) for model in settings.mix.models.values())


def _requests(settings: Settings, lengths: str, models: Sequence[ServedModel]) -> Requests:
    shapes = [model.shape for model in models]
    if settings.sessions:
        if len(models) > 1:
            raise ValueError(f"sessions are of one model, not of {len(models)}; choose another mix")
        longest = settings.serving.max_model_len or shapes[0].max_context_tokens
        return SessionWorkload(settings=settings.sessions[lengths], seed=settings.seed, max_context_tokens=longest)
    made = workload(
        arrivals=settings.arrivals,
        lengths=settings.lengths[lengths],
        settings=settings.workload,
        seed=settings.seed,
        shapes=shapes,
        lengths_by_model=_lengths_by_model(settings),
    )
    return Agents(whole=made) if settings.workload.agents else made


def _served_moe(settings: Settings) -> ServedMoe | None:
    experts = settings.mix.experts
    if experts is None:
        return None
    settings.backend.refuse_for_experts()
    return ServedMoe(
        shape=experts.shape,
        n_ranks=experts.ranks.n_ranks,
        share=experts.share,
        activation_bytes=experts.activation_bytes,
    )


def _rank(moe: ServedMoe, hardware: HardwareProfile) -> ServedModel:
    """One rank, as results name it."""
    shape = rank_shape(moe.shape, moe.n_ranks, moe.shape.experts(moe.n_ranks, hardware.page_bytes))
    return ServedModel(shape=shape, share=moe.share, activation_bytes=moe.activation_bytes)


def _lengths_by_model(settings: Settings) -> dict[str, LengthSettings]:
    """By the names of the models' shapes.

    Raises:
        ValueError: the mix has no such model.
    """
    if unknown := sorted(set(settings.lengths_by_model) - set(settings.mix.models)):
        raise ValueError(f"lengths_by_model: no model {unknown[0]}; there are {', '.join(settings.mix.models)}")
    return {settings.mix.models[name].shape.name: each for name, each in settings.lengths_by_model.items()}


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
        cpu_attention_bytes_per_s=hardware.cpu.attention_bytes_per_s,
        cpu_layer_ns=hardware.cpu.layer_ns,
    )
