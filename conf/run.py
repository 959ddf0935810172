"""One run: a system under a workload, as frozen settings that another process or machine can be given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

from conf.grid import ONCE
from conf.schema import Settings
from policies.moe_setup import ServedMoe
from policies.policy import Policy
from policies.serving.tenancy import Sharing
from policies.setup import ServedModel
from policies.types import Arrival, HardwareProfile, Request
from traces.results.folder import ModelInfo, RunInfo
from traces.results.grid import Grid, Scalar


class Requests(Protocol):
    """What arrives: a ``traces.workload.workload.Workload``, or the requests of another run."""

    @property
    def seed(self) -> int:
        """Of their random streams."""
        ...

    @property
    def description(self) -> str:
        """What they are, for a person."""
        ...

    def arrivals(self) -> Iterator[Arrival]:
        """Start the stream, in order of time; again, if it was started before."""
        ...


@runtime_checkable
class Following(Protocol):
    """Requests of which the finish brings about others: turns of sessions, agents in a row."""

    def follow(self, request: Request, finish_ns: int) -> Iterable[Arrival]:
        """What the finish of a request brings about, none of it earlier."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One system under one workload.

    Attributes:
        system: the policy or variant, as ``compare`` names it.
        lengths: the name of the lengths, or of the sessions.
        models: in the order in which results count them; of models that are divided what one rank holds.
        moe: the mixture-of-experts model as it is served, if the mix has one.
        settings: all of the configuration, with what this run changes in it.
        config: what of it decides how the run comes out, as JSON can hold it.
        grid: in what it differs from other runs of its system: see ``traces/results/grid.py``.
    """

    system: str
    lengths: str
    policy: Policy
    hardware: HardwareProfile
    models: tuple[ServedModel, ...]
    tenancy: Sharing
    workload: Requests
    settings: Settings
    config: Mapping[str, object]
    grid: Grid = field(default_factory=dict[str, Scalar])
    moe: ServedMoe | None = None

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.settings.serving.block_tokens if self.moe is None else self.moe.shape.block_tokens(self.moe.n_ranks)


def decisive(config: Mapping[str, object], lengths: str, policy: str) -> dict[str, object]:
    """Leave of a whole configuration what decides how a run comes out: its own lengths or sessions, its own policy."""
    kept = {key: value for key, value in config.items() if key not in ONCE}
    sessions = cast("Mapping[str, object]", config.get("sessions", {}))
    groups = [("policy", policy)]
    if lengths in sessions:
        kept = {key: value for key, value in kept.items() if key not in ("arrivals", "lengths", "workload")}
        groups.append(("sessions", lengths))
    else:
        kept.pop("sessions", None)
        groups.append(("lengths", lengths))
    for group, chosen in groups:
        kept[group] = {chosen: cast("Mapping[str, object]", config[group])[chosen]}
    return kept


def run_info(run: Run) -> RunInfo:
    """What results say of a run."""
    settings = run.settings
    return RunInfo(
        system=run.system,
        mix=settings.mix.name,
        lengths=run.lengths,
        rate_per_s=_rate(run),
        seed=settings.seed,
        models=tuple(
            ModelInfo(name=model.shape.name, block_bytes=model.shape.block_bytes(run.block_tokens))
            for model in run.models
        ),
        hbm_bytes=run.hardware.hbm_bytes,
        device=f"{run.hardware.name} ({settings.backend.world})",
        config=run.config,
        grid=run.grid,
    )


def _rate(run: Run) -> float | None:
    """Requests/s that were asked for; sessions have none."""
    return None if run.settings.sessions else run.settings.arrivals.rate


def workload_name(run: Run) -> str:
    """Name lengths and rate, as a file can be called."""
    if run.settings.sessions:
        return run.lengths
    rate = _rate(run)
    return f"{run.lengths}-{'own-rate' if rate is None else f'{rate:g}'}"


def readable_name(run: Run) -> str:
    """Name a run for those who look through folders."""
    return re.sub(r"[^\w.+-]", "_", f"{workload_name(run)}-{run.system}-seed{run.settings.seed}")
