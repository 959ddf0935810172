"""The same requests at any rate: what a comparison with common random numbers needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from conf.schema import Settings
from policies.types import NS_PER_S, Arrival, Request
from traces.workload.workload import Workload, workload

MOST_READ = 100_000
"""Requests of a trace that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one seed, in order of time from 0.

    Attributes:
        rate_per_s: of these requests as they came.
    """

    seed: int
    arrivals: tuple[Arrival, ...]
    rate_per_s: float

    def at(self, rate_per_s: float) -> Scaled:
        """The same requests, closer together or farther apart."""
        return Scaled(stream=self, rate_per_s=rate_per_s)

    @property
    def n_of_model(self) -> Mapping[int, int]:
        """Requests of each model."""
        counts: dict[int, int] = {}
        for arrival in self.arrivals:
            counts[arrival.request.model] = counts.get(arrival.request.model, 0) + 1
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A stream at a rate: ``conf.run.Requests``."""

    stream: Stream
    rate_per_s: float

    @property
    def seed(self) -> int:
        """Of their random streams."""
        return self.stream.seed

    @property
    def description(self) -> str:
        """What they are, for a person."""
        return f"{len(self.stream.arrivals)} requests of seed {self.seed} at {self.rate_per_s:.4g} requests/s"

    def arrivals(self) -> Iterator[Arrival]:
        """Start the stream."""
        factor = self.stream.rate_per_s / self.rate_per_s
        for arrival in self.stream.arrivals:
            of = arrival.request
            at_ns = round(of.arrival_ns * factor)
            request = Request(of.request_id, of.model, at_ns, of.n_prompt_tokens, of.max_output_tokens, of.prompt)
            yield Arrival(request, arrival.n_output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is served.

    Attributes:
        streams: one a seed.
        description: where they come from.
        n_too_long: of each model, requests of the first seed's source that exceed its context, and all of them.
        rate_per_s: of the source as it came, over-long requests left out.
    """

    streams: tuple[Stream, ...]
    description: str
    n_too_long: tuple[tuple[int, int], ...]
    rate_per_s: float


def traffic(settings: Settings, lengths: str, n_seeds: int, n_requests: int) -> Traffic:
    """Take requests of so many seeds: of a trace a window each, evenly apart, else draws of their own.

    Raises:
        ValueError: the trace is faulty, or there are too few requests.
    """
    if settings.workload.agents:
        raise ValueError("workload.agents=true: a plan knows no requests that wait for others; run an experiment")
    first = _source(settings, lengths, settings.seed)
    is_trace = settings.arrivals.kind == "file"
    all_of_first = list(islice(first.arrivals(), MOST_READ if is_trace else n_requests))
    counts = tuple((model.n_dropped, model.n_offered) for model in first.counts.models)
    if len(all_of_first) < 2:
        raise ValueError(f"{first.description}: {len(all_of_first)} requests are too few to plan with")
    streams: list[Stream] = []
    for nth in range(n_seeds):
        seed = settings.seed + nth
        begin = _begin(len(all_of_first), n_requests, nth, n_seeds) if is_trace else 0
        source = iter(all_of_first) if nth == 0 else _source(settings, lengths, seed).arrivals()
        streams.append(_stream(seed, list(islice(source, begin, begin + n_requests))))
    return Traffic(
        streams=tuple(streams),
        description=first.description,
        n_too_long=counts,
        rate_per_s=_rate_per_s(all_of_first),
    )


def _source(settings: Settings, lengths: str, seed: int) -> Workload:
    return workload(
        arrivals=settings.arrivals,
        lengths=settings.lengths[lengths],
        settings=settings.workload,
        seed=seed,
        shapes=[model.shape for model in settings.mix.models.values()],
    )


def _begin(n_all: int, n_requests: int, nth: int, n_windows: int) -> int:
    """Where a window begins: side by side from the first request on if they fit, else overlapping."""
    room = max(0, n_all - n_requests)
    return room * nth // max(1, n_windows - 1)


def _stream(seed: int, arrivals: Sequence[Arrival]) -> Stream:
    if len(arrivals) < 2 or arrivals[-1].request.arrival_ns == arrivals[0].request.arrival_ns:
        raise ValueError(f"seed {seed}: {len(arrivals)} requests at one instant have no rate; take a longer trace")
    begin_ns = arrivals[0].request.arrival_ns
    moved = tuple(
        Arrival(
            Request(
                index,
                each.request.model,
                each.request.arrival_ns - begin_ns,
                each.request.n_prompt_tokens,
                each.request.max_output_tokens,
                each.request.prompt,
            ),
            each.n_output_tokens,
        )
        for index, each in enumerate(arrivals)
    )
    return Stream(seed=seed, arrivals=moved, rate_per_s=_rate_per_s(arrivals))


def _rate_per_s(arrivals: Sequence[Arrival]) -> float:
    span_ns = arrivals[-1].request.arrival_ns - arrivals[0].request.arrival_ns
    return (len(arrivals) - 1) * NS_PER_S / span_ns
