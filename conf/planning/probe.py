"""One question: is the promise kept by this system, with these requests, at this rate?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from conf.carry_out import open_books, open_engine
from conf.garbage import seldom_collected
from conf.planning.measure import Measured, Measuring
from conf.planning.search import Bracket, Ladder
from conf.planning.slo import Settled, Slo, SloWatch
from conf.planning.streams import Stream
from conf.run import Run
from conf.worlds import open_world
from policies.engine import Outcome
from policies.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for the highest rate of one system under the requests of one seed."""

    run: Run
    stream: Stream
    slo: Slo
    ladder: Ladder
    guess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        cap_in_reach: see ``SloWatch``; the most of all rates that were tried.
    """

    bracket: Bracket
    cap_in_reach: float


def highest_rate(search: Search) -> Found:
    """Carry out a search."""
    reached = [0.0]

    def holds(rate_per_s: float) -> bool:
        watch = watched(search.run, search.stream, search.slo, rate_per_s)
        reached.append(watch.cap_in_reach)
        return watch.is_kept

    bracket = search.ladder.limit(holds, search.guess)
    return Found(bracket=bracket, cap_in_reach=max(reached))


def watched(run: Run, stream: Stream, slo: Slo, rate_per_s: float) -> SloWatch:
    """Serve until it is settled whether the promise is kept."""
    watch = SloWatch(slo, len(stream.arrivals))
    with suppress(Settled):
        _serve(run, stream, rate_per_s, watch)
    return watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One system under the requests of one seed at one rate."""

    run: Run
    stream: Stream
    slo: Slo
    rate_per_s: float


def measured(point: Point) -> Measured:
    """Serve all of it, and tell what came out."""
    measuring = Measuring(point.slo, len(point.stream.arrivals))
    _serve(point.run, point.stream, point.rate_per_s, measuring)
    return measuring.result()


def _serve(run: Run, stream: Stream, rate_per_s: float, journal: Journal) -> Outcome:
    """Serve a stream at a rate. Requests that can never run are left."""
    at_rate = replace(run, workload=stream.at(rate_per_s))
    ledger, lanes = open_books(at_rate)
    with open_world(at_rate, ledger, lanes) as backend, seldom_collected():
        return open_engine(at_rate, ledger, lanes, backend, journal).run(at_rate.workload.arrivals())
