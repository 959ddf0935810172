"""The answer to ``plan``: searches in the order in which they are needed, then what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import ceil, inf
from statistics import fmean

from conf.own_mix import each_named
from conf.parallel import Parallel, side_by_side
from conf.planning.ask import Question
from conf.planning.interval import Interval, interval
from conf.planning.limits import LinkAnswer, Relief, link_that_pays, reliefs
from conf.planning.measure import Measured
from conf.planning.probe import Found, Point, Search, highest_rate, measured
from conf.planning.search import Bracket, Ladder
from conf.planning.streams import Traffic, traffic
from conf.planning.systems import Configuration, System, configuration, families
from conf.run import Run
from policies.memory.ledger import partition
from traces.hf.model import HfModel

FEWEST, MOST = 600, 20_000
"""Requests of a seed, unless they are given."""

HEADROOM = 2.0
"""How much faster than the baseline a system may be before its requests are too few."""

WORTH = 0.02
"""Gain in rate below which lending is not called worth it: as fine as the rates are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Up to which rates one system keeps the promise.

    Attributes:
        brackets: one a seed.
        rate: over seeds, requests/s of all GPUs.
        gain: over the baseline, as a share of its rate, seed by seed; ``None``: the baseline keeps it at no rate.
    """

    system: System
    brackets: tuple[Bracket, ...]
    rate: Interval
    gain: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One system at the rates at which the baseline just keeps the promise, seed by seed."""

    system: System
    runs: tuple[Measured, ...]

    def mean(self, of: Callable[[Measured], float]) -> float:
        """A figure over the seeds."""
        return sum(map(of, self.runs)) / len(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the mix as it is served.

    Attributes:
        kv_tokens: that its own KV cache holds.
        cap_bytes: that it may lend at most, under the largest cap.
        n_too_long: requests that exceed its context, of so many.
        derived: from a Hugging Face config.
    """

    name: str
    n_layers: int
    layer_bytes: int
    total_bytes: int
    kv_bytes_per_token: int
    expert_bytes: int | None
    share: float
    kv_tokens: int
    context_tokens: int
    cap_bytes: int
    n_too_long: tuple[int, int]
    derived: HfModel | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What ``plan`` found.

    Attributes:
        rates: of every system, the baseline first.
        reference: the best of those that do not lend; ``lender``: the best of those that lend, ``None`` without one.
        gain: of the lender over the reference.
        served: reference and lender at the rates that the reference keeps.
        reliefs: what more of each resource would give to the system that is recommended.
        link: from which link speed on lending pays.
        curve: at rates around the reference's, shares of requests that have what is promised, by system.
    """

    asked: Question
    traffic: Traffic
    run: Run
    models: tuple[Model, ...]
    rates: tuple[Rates, ...]
    reference: System
    lender: System | None
    gain: Interval | None
    served: tuple[Served, ...]
    reliefs: tuple[Relief, ...]
    link: LinkAnswer | None
    curve: tuple[tuple[float, dict[str, float]], ...]

    @property
    def pays(self) -> bool:
        """Whether lending holds the promise at higher rates, surely and noticeably."""
        return self.gain is not None and self.gain.low > 0 and self.gain.mean >= WORTH

    @property
    def is_open(self) -> bool:
        """Whether the promise is kept at every rate that was tried, with and without lending: too few requests."""
        compared = [self.reference] if self.lender is None else [self.reference, self.lender]
        return all(bracket.high == inf for system in compared for bracket in self.of(system).brackets)

    @property
    def is_unsure(self) -> bool:
        """Whether the seeds do not tell if it pays."""
        return self.is_open or (not self.pays and self.gain is not None and self.gain.high >= WORTH)

    @property
    def recommended(self) -> System:
        """Lender if it pays, else the best without lending."""
        return self.lender if self.pays and self.lender is not None else self.reference

    def of(self, system: System) -> Rates:
        """The rates of a system."""
        return next(rates for rates in self.rates if rates.system == system)


class Planner:
    """Carries out the searches of one question.

    Raises:
        ValueError: the question cannot be answered.
    """

    def __init__(self, asked: Question) -> None:
        self._asked = asked
        self._how = Parallel(jobs=asked.jobs)
        self._configuration: Configuration = configuration(asked)
        self._families = families(asked, self._configuration)
        self._take(asked.n_requests or FEWEST)

    def _take(self, n_requests: int) -> None:
        """Draw so many requests a seed, and put the systems together that serve them."""
        asked = self._asked
        first = self._configuration.run(self._families[0][0])
        self._traffic = traffic(first.settings, self._configuration.lengths, asked.n_seeds, n_requests)
        start = (asked.rate_per_s or self._traffic.rate_per_s) / asked.n_gpus
        self._ladder = Ladder(rate_per_s=start, precision=asked.precision)
        self._runs = {
            system: self._configuration.run(system, self._traffic) for family in self._families for system in family
        }

    def _base(self) -> list[Found]:
        """Search with the baseline, and with more requests if these come too fast to show an overload."""
        baseline = self._families[0][0]
        guess, n_requests = self._ladder.rate_per_s, self._asked.n_requests or FEWEST
        while True:
            found = self._all(self._searches(baseline, [guess] * self._asked.n_seeds))
            rates = [each.bracket.middle for each in found]
            needed = ceil(HEADROOM * max(rates) * self._asked.slo.span_s)
            is_all = any(len(stream.arrivals) < n_requests for stream in self._traffic.streams)
            if self._asked.n_requests is not None or n_requests >= min(needed, MOST) or is_all:
                return found
            guess, n_requests = fmean(rates), min(needed, MOST, 4 * n_requests)
            self._take(n_requests)

    def answer(self) -> Answer:
        """Find everything out."""
        baseline, *others = self._families
        n_seeds = self._asked.n_seeds
        found = {baseline[0]: self._base()}
        base = [each.bracket for each in found[baseline[0]]]
        guesses = [bracket.low or bracket.high for bracket in base]
        searches = [search for family in others for search in self._searches(family[0], guesses)]
        results = iter(self._all(searches))
        for family in others:
            found[family[0]] = list(islice(results, n_seeds))
        for family in others:
            for larger, system in pairwise(family):
                found[system] = self._under_cap(system, found[larger])
        return self._concluded(
            tuple(
                self._rates(system, [each.bracket for each in found[system]], base)
                for family in self._families
                for system in family
            )
        )

    def _under_cap(self, system: System, larger: Sequence[Found]) -> list[Found]:
        """Search under a smaller cap, where it was in reach under the larger one; elsewhere it changes nothing."""
        assert system.cap is not None
        same = [each.cap_in_reach <= system.cap for each in larger]
        searches = self._searches(system, [each.bracket.low or each.bracket.high for each in larger])
        anew = iter(self._all([search for search, is_same in zip(searches, same, strict=True) if not is_same]))
        return [each if is_same else next(anew) for each, is_same in zip(larger, same, strict=True)]

    def _concluded(self, rates: tuple[Rates, ...]) -> Answer:
        reference = max((each for each in rates if not each.system.lends), key=lambda each: each.rate.mean)
        lenders = [each for each in rates if each.system.lends]
        lender = max(lenders, key=lambda each: (each.rate.mean, -(each.system.cap or 0.0)), default=None)
        gain = None if lender is None else _gain(lender.brackets, reference.brackets)
        compared = [reference.system] if lender is None else [reference.system, lender.system]
        answer = Answer(
            asked=self._asked,
            traffic=self._traffic,
            run=self._runs[reference.system],
            models=self._models(),
            rates=rates,
            reference=reference.system,
            lender=None if lender is None else lender.system,
            gain=gain,
            served=self._served(compared, reference.brackets),
            reliefs=(),
            link=None,
            curve=(),
        )
        best = answer.of(answer.recommended)
        how, slo = self._how, self._asked.slo
        more = reliefs(self._configuration, self._traffic, best.system, best.brackets, self._ladder, slo, how)
        link = None if lender is None else self._link(reference.brackets, pays_now=answer.pays)
        curve = self._curve(compared, reference.rate.mean) if self._asked.report else ()
        return replace(answer, reliefs=more, link=link, curve=curve)

    def _link(self, reference: Sequence[Bracket], *, pays_now: bool) -> LinkAnswer:
        lenders = [family[0] for family in self._families if family[0].lends]
        return link_that_pays(
            self._configuration, self._traffic, lenders, reference, self._asked.slo, self._how, pays_now=pays_now
        )

    def _searches(self, system: System, guesses: Sequence[float]) -> list[Search]:
        asked = self._asked
        return [
            Search(run=self._runs[system], stream=stream, slo=asked.slo, ladder=self._ladder, guess=guess)
            for stream, guess in zip(self._traffic.streams, guesses, strict=True)
        ]

    def _all(self, searches: Sequence[Search]) -> list[Found]:
        return list(side_by_side(highest_rate, searches, self._how))

    def _rates(self, system: System, brackets: Sequence[Bracket], base: Sequence[Bracket]) -> Rates:
        n_gpus = self._asked.n_gpus
        return Rates(
            system=system,
            brackets=tuple(brackets),
            rate=interval([bracket.middle * n_gpus for bracket in brackets]),
            gain=_gain(brackets, base),
        )

    def _served(self, compared: Sequence[System], brackets: Sequence[Bracket]) -> tuple[Served, ...]:
        """Serve at the rates of these brackets; where the promise is kept nowhere, at the lowest that was tried."""
        points = [
            self._point(system, nth, bracket.low or bracket.high)
            for system in compared
            for nth, bracket in enumerate(brackets)
        ]
        runs = list(side_by_side(measured, points, self._how))
        n = self._asked.n_seeds
        return tuple(
            Served(system=system, runs=tuple(runs[index * n : (index + 1) * n]))
            for index, system in enumerate(compared)
        )

    def _point(self, system: System, nth: int, rate_per_s: float) -> Point:
        return Point(
            run=self._runs[system], stream=self._traffic.streams[nth], slo=self._asked.slo, rate_per_s=rate_per_s
        )

    def _curve(self, compared: Sequence[System], rate_per_s: float) -> tuple[tuple[float, dict[str, float]], ...]:
        per_gpu = (rate_per_s or self._traffic.rate_per_s) / self._asked.n_gpus
        rates = [per_gpu * factor for factor in (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)]
        seeds = range(min(3, self._asked.n_seeds))
        points = [self._point(system, nth, rate) for rate in rates for system in compared for nth in seeds]
        runs = iter(list(side_by_side(measured, points, self._how)))
        return tuple(
            (
                rate * self._asked.n_gpus,
                {system.name: sum(next(runs).kept_share for _ in seeds) / len(seeds) for system in compared},
            )
            for rate in rates
        )

    def _models(self) -> tuple[Model, ...]:
        run = self._runs[self._families[0][0]]
        keys = list(run.settings.mix.models)
        derived = (
            [each.derived for each in each_named(self._asked.models)] if self._asked.models else [None] * len(keys)
        )
        caps = [system.cap for system in self._runs if system.cap is not None]
        return tuple(
            _model(run, index, key, of, max(caps, default=0.0), self._traffic.n_too_long[index])
            for index, (key, of) in enumerate(zip(keys, derived, strict=True))
        )


def _gain(brackets: Sequence[Bracket], base: Sequence[Bracket]) -> Interval | None:
    if not all(bracket.middle for bracket in base):
        return None
    return interval([one.middle / other.middle - 1 for one, other in zip(brackets, base, strict=True)])


def _model(run: Run, index: int, key: str, derived: HfModel | None, cap: float, n_too_long: tuple[int, int]) -> Model:
    served = run.models[index]
    shape = served.shape
    part = partition(shape, run.hardware, share=served.share, activation_bytes=served.activation_bytes)
    return Model(
        name=key,
        n_layers=shape.n_layers,
        layer_bytes=shape.layer_bytes,
        total_bytes=shape.total_bytes,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        expert_bytes=None if shape.mixture is None else shape.mixture.expert_bytes,
        share=served.share,
        kv_tokens=part.kv_pages * run.hardware.page_bytes // shape.kv_bytes_per_token,
        context_tokens=shape.max_context_tokens,
        cap_bytes=int(shape.n_layers * cap) * shape.layer_bytes,
        n_too_long=n_too_long,
        derived=derived,
    )
