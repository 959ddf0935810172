"""Arrivals, lengths and the division among models, joined into one stream of requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate, cycle, islice, takewhile
from math import isfinite

from policies.types import NS_PER_S, Arrival, ModelShape
from traces.workload.arrivals import BLOCK
from traces.workload.counts import ModelCounts, WorkloadCounts
from traces.workload.emitted import Labelled, emitted
from traces.workload.lengths import LengthSettings, lengths_of
from traces.workload.limits import Limits
from traces.workload.phases import Phases
from traces.workload.settings import require_choice, require_positive
from traces.workload.sources import ArrivalSettings, Scaling, Source, source_of
from traces.workload.streams import random_stream

DIVISIONS = ("weights", "round_robin", "per_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """How arrivals become requests, and how many.

    Attributes:
        division: ``weights``: each request draws its model by weight. ``round_robin``: the
            models take turns. ``per_model``: each model has an independent process of its
            own at its share of the rate by weight; requests at the same time are in the
            order of the models. Of a trace file, model k of n replays the same window from
            k/n of its duration on, around its end, so that bursts do not coincide.
        weights: one for each model, not all 0; ``None`` for equal ones.
        overlong, declared, declared_tokens: see ``Limits``.
        duration_s: the stream ends before the first request at or after it, in scaled time.
        n_requests: the stream ends with this many.
        phase_s, phase_factors: the rate is multiplied by each factor in turn for so long, again and again; with
            ``per_model`` model k of n is k/n of a cycle ahead. See ``traces/workload/phases.py``.
        agents: requests arrive at the first model only; what a model answers is the prompt of the next one. See
            ``traces/workload/agents.py``.

    Raises:
        ValueError: a choice is unknown, a number out of range, a setting without effect.
    """

    division: str = "weights"
    weights: Sequence[float] | None = None
    overlong: str = "drop"
    declared: str = "exact"
    declared_tokens: int | None = None
    duration_s: float | None = None
    n_requests: int | None = None
    phase_s: tuple[float, ...] = ()
    phase_factors: tuple[float, ...] = ()
    agents: bool = False

    def __post_init__(self) -> None:
        _ = self.phases
        require_choice("division", self.division, DIVISIONS)
        require_positive("duration_s", self.duration_s, "s")
        require_positive("n_requests", self.n_requests, "requests")
        _ = self.limits  # refuses what does not go together
        if self.agents and (self.weights is not None or self.division != "weights"):
            raise ValueError(
                "agents=true sends all requests to the first model; leave weights and division as they are"
            )
        if self.weights is None:
            return
        if self.division == "round_robin":
            raise ValueError("weights have no effect with division=round_robin; set weights=null")
        if not all(isfinite(weight) and weight >= 0 for weight in self.weights) or not any(self.weights):
            raise ValueError(f"weights={list(self.weights)} must be finite, at least 0, and not all 0")

    @property
    def limits(self) -> Limits:
        """The part that fits lengths to a model."""
        return Limits(overlong=self.overlong, declared=self.declared, declared_tokens=self.declared_tokens)

    @property
    def phases(self) -> Phases | None:
        """How the rate changes; ``None``: not."""
        if not self.phase_s and not self.phase_factors:
            return None
        return Phases(lasts_s=self.phase_s, factors=self.phase_factors)

    def shares(self, n_models: int) -> list[float]:
        """Share of the requests of each model, summing to 1.

        Raises:
            ValueError: the number of weights is not that of the models.
        """
        if self.agents:
            return [1.0, *[0.0] * (n_models - 1)]
        weights = [1.0] * n_models if self.weights is None else list(self.weights)
        if len(weights) != n_models:
            raise ValueError(f"weights={weights} are {len(weights)} for {n_models} models; give one for each")
        return [weight / sum(weights) for weight in weights]


@dataclass(slots=True, kw_only=True)
class Workload:
    """A stream of requests that can be started again and is then the same to the byte.

    Attributes:
        lengths: of each model.
        scalings: of each process: one for each model with ``per_model``, else a single one.
        counts: of the stream that was started last.
    """

    settings: WorkloadSettings
    shapes: Sequence[ModelShape]
    source: Source
    scalings: Sequence[Scaling]
    lengths: Sequence[LengthSettings]
    seed: int
    counts: WorkloadCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self._zero_counts()

    def arrivals(self) -> Iterator[Arrival]:
        """Start the stream: request ids 0, 1, 2, ..., arrival times nondecreasing from 0.

        Raises:
            ValueError: a faulty row of the trace or, with ``overlong=error``, a request that is too long.
        """
        self.counts = counts = self._zero_counts()
        drawn = [lengths_of(each, random_stream(self.seed, "lengths", m)) for m, each in enumerate(self.lengths)]
        stream = emitted(self._within_duration(), drawn, self.shapes, self.settings.limits, counts)
        return islice(stream, self.settings.n_requests)

    def _within_duration(self) -> Iterator[Labelled]:
        if self.settings.duration_s is None:
            return self._labelled()
        end_ns = round(self.settings.duration_s * NS_PER_S)
        return takewhile(lambda arrival: arrival[0] < end_ns, self._labelled())

    def _labelled(self) -> Iterator[Labelled]:
        """Arrivals of all models in order of time; at the same time in the order of the models."""
        if self.settings.division == "per_model":
            return merge(*(self._own(model) for model in range(len(self.shapes))), key=lambda arrival: arrival[0])
        arrivals = random_stream(self.seed, "arrivals")
        scaled = self.scalings[0].apply(self.source.arrivals(arrivals), random_stream(self.seed, "thinning"))
        if (phases := self.settings.phases) is not None:
            scaled = phases.apply(scaled)
        return ((arrival_ns, model, row) for (arrival_ns, row), model in zip(scaled, self._models(), strict=False))

    def _own(self, model: int) -> Iterator[Labelled]:
        """The process of one model alone."""
        scaling = self.scalings[model]
        if scaling.factor == 0:
            return
        phase = model / len(self.shapes)
        arrivals = self.source.arrivals(random_stream(self.seed, "arrivals", model), phase)
        scaled = scaling.apply(arrivals, random_stream(self.seed, "thinning", model))
        if (phases := self.settings.phases) is not None:
            scaled = phases.apply(scaled, phase)
        for arrival_ns, row in scaled:
            yield arrival_ns, model, row

    def _models(self) -> Iterator[int]:
        """Whose request is next, without end."""
        n_models = len(self.shapes)
        if self.settings.division == "round_robin" or n_models == 1:
            yield from cycle(range(n_models))
        bounds = list(accumulate(self.settings.shares(n_models)))
        rng = random_stream(self.seed, "models")
        while True:
            for drawn in rng.random(BLOCK).tolist():
                yield bisect_right(bounds, drawn * bounds[-1], hi=n_models - 1)

    def _zero_counts(self) -> WorkloadCounts:
        return WorkloadCounts(
            n_failed_rows=self.source.n_failed, models=[ModelCounts(name=shape.name) for shape in self.shapes]
        )

    @property
    def description(self) -> str:
        """Which window, which scaling, which rate, whose requests: one line, known before the stream starts."""
        factor = sum(scaling.factor for scaling in self.scalings)
        rate = factor * self.source.mean_rate_per_s
        scaled = ", ".join(dict.fromkeys(scaling.label for scaling in self.scalings))
        parts = [self.source.label, f"{scaled}: {self.source.mean_rate_per_s:.3f} -> {rate:.3f} requests/s"]
        if self.settings.duration_s is not None:
            parts.append(f"until {self.settings.duration_s:g} s")
        if self.settings.phases is not None:
            phases = zip(self.settings.phase_factors, self.settings.phase_s, strict=True)
            parts.append("rate " + ", ".join(f"x {factor:g} for {lasts:g} s" for factor, lasts in phases))
        if self.settings.n_requests is not None:
            parts.append(f"first {self.settings.n_requests}")
        by_model = zip(self.shapes, self.settings.shares(len(self.shapes)), self.lengths, strict=True)
        models = ", ".join(f"{shape.name} {share:.3g} with {each.label}" for shape, share, each in by_model)
        return "; ".join([*parts, f"{self.settings.division}: {models}"])


def workload(
    *,
    arrivals: ArrivalSettings,
    lengths: LengthSettings,
    settings: WorkloadSettings,
    seed: int,
    shapes: Sequence[ModelShape],
    lengths_by_model: Mapping[str, LengthSettings] | None = None,
) -> Workload:
    """Check everything that can be known before the first request, and join it.

    Args:
        lengths: of every model that ``lengths_by_model`` does not name.
        seed: 0 or more; each purpose and each model draws from its own stream.
        shapes: the models in order; ``Request.model`` counts from 0.

    Raises:
        ValueError: the settings do not go together, or a file or a table is not usable.
    """
    by_model = dict(lengths_by_model or {})
    names = [shape.name for shape in shapes]
    if unknown := sorted(set(by_model) - set(names)):
        raise ValueError(f"lengths_by_model names {', '.join(unknown)}, but the models are {', '.join(names)}")
    chosen = [by_model.get(name, lengths) for name in names]
    _refuse_misfits(arrivals, chosen, settings, seed, shapes)
    shares = settings.shares(len(shapes))
    source = source_of(arrivals)
    total = 1.0 if arrivals.rate is None else arrivals.rate / source.mean_rate_per_s
    factors = [total * share for share in shares] if settings.division == "per_model" else [total]
    scalings = [Scaling(kind=arrivals.scaling, factor=factor) for factor in factors]
    return Workload(settings=settings, shapes=shapes, source=source, scalings=scalings, lengths=chosen, seed=seed)


def _refuse_misfits(
    arrivals: ArrivalSettings,
    lengths: Sequence[LengthSettings],
    settings: WorkloadSettings,
    seed: int,
    shapes: Sequence[ModelShape],
) -> None:
    """Refuse what each part allows alone, but not together."""
    if not shapes:
        raise ValueError("there is no model to send requests to; name at least one")
    for shape in shapes:
        if shape.max_context_tokens < 2:
            raise ValueError(f"model {shape.name}: max_context_tokens={shape.max_context_tokens} must be at least 2")
    for each in lengths:
        lengths_of(each, random_stream(seed, "lengths"))  # refuses an unknown table, a negative seed
        if each.kind == "file" and arrivals.kind != "file":
            raise ValueError(f"lengths.kind=file needs arrivals.kind=file, not {arrivals.kind}; choose other lengths")
    if arrivals.kind != "file" and settings.duration_s is None and settings.n_requests is None:
        raise ValueError(f"arrivals.kind={arrivals.kind} never ends; set duration_s or n_requests")
