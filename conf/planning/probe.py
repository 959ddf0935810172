"""One question: is the promise kept by this system, with these requests, at this rate?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from conf.carry_out import open_books, open_engine, seldom_collected
from conf.planning.measure import Measured, Measuring
from conf.planning.search import Bracket, limit
from conf.planning.slo import Settled, Slo, SloWatch
from conf.planning.streams import Stream
from conf.run import Run
from conf.worlds import open_world
from policies.engine import Outcome
from policies.journal import Journal

SPAN = 1000.0
"""Rates so many times below and above the guess are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for the highest rate of one system under the requests of one seed."""

    run: Run
    stream: Stream
    slo: Slo
    guess: float
    precision: float


def highest_rate(search: Search) -> Bracket:
    """Carry out a search."""

    def holds(rate_per_s: float) -> bool:
        return is_kept(search.run, search.stream, search.slo, rate_per_s)

    guess = search.guess
    return limit(holds, guess, precision=search.precision, least=guess / SPAN, most=guess * SPAN)


def is_kept(run: Run, stream: Stream, slo: Slo, rate_per_s: float) -> bool:
    """Serve until it is settled whether the promise is kept."""
    watch = SloWatch(slo, len(stream.arrivals))
    try:
        _serve(run, stream, rate_per_s, watch)
    except Settled:
        pass
    return watch.is_kept


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
