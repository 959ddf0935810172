"""Computation and fetches beside each other: by how much each takes longer; and steps one behind the other as in a run.

Beside each other means without a break, and in turns with computation alone: a device that computes all the time may
draw so much power that its clocks fall, and copies draw more. Steps with pauses between them show neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter_ns

from executor.models.step import Row
from executor.profiling.machine import last_ns
from executor.profiling.specimen import Specimen
from policies.types import NS_PER_S

TURN_NS = NS_PER_S // 2
"""Of steps alone or beside fetches; the second half is timed. Clocks follow power within some tens of milliseconds."""

N_PAIRS = 2
"""Turns beside fetches; there is one more alone, so that a drift does not count."""

N_IN_FLIGHT = 2
"""Steps that the device has been asked for: it never waits for the host."""


SETTLE_NS = NS_PER_S // 4
"""Of steps before those that count: clocks follow the power that is drawn within some tens of milliseconds."""

N_FEWEST, N_TIMED = 2, 10
"""Steps before those that count at least, and steps that do."""

MOST_BEFORE = 100
"""Steps before those that count at most: a tiny model on a CPU has no clocks to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Shares by which the layers of a step take longer beside fetches, and fetches beside them; at least 0."""

    compute: float
    copies: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Steps one behind the other, and what was timed of them.

    Attributes:
        fetch_ns: time of one fetch beside them, 0 where there is none.
        began_ns, ended_ns: of what was timed, by the host's clock.
    """

    layers_ns: int
    fetch_ns: int
    began_ns: int
    ended_ns: int


def contention(model: Specimen, rows: Sequence[Row]) -> Contention:
    """Measure a step of these rows."""
    return of_turns(list(turns(model, rows)), fetch_ns(model))


def of_turns(taken: Sequence[Turn], alone_ns: int) -> Contention:
    """Compare turns, every other one beside fetches.

    Args:
        alone_ns: time of a fetch beside nothing.
    """
    alone, beside = (median(turn.layers_ns for turn in taken[first::2]) for first in (0, 1))
    copying_ns = median(turn.fetch_ns for turn in taken[1::2])
    return Contention(compute=max(0.0, beside / alone - 1), copies=max(0.0, copying_ns / alone_ns - 1))


def turns(model: Specimen, rows: Sequence[Row]) -> Iterator[Turn]:
    """Run steps alone and beside fetches in turns, first and last alone."""
    if model.device.type != "cuda":  # a copy is made by what computes: there is nothing to see
        yield from [_turn(model, rows, 0, 0)] * (2 * N_PAIRS + 1)
        return
    step_ns = _turn(model, rows, TURN_NS, 0).layers_ns
    n_ahead = 2 + ceil((N_IN_FLIGHT + 1) * step_ns / fetch_ns(model))
    for nth in range(2 * N_PAIRS + 1):
        yield _turn(model, rows, TURN_NS, n_ahead if nth % 2 else 0)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was asked of the device.

    Attributes:
        seen_ns: when the host went on, one step behind; ``n_fetched`` fetches had been done by then.
    """

    layers: tuple[object, object]
    end: object
    seen_ns: int
    n_fetched: int


def _turn(model: Specimen, rows: Sequence[Row], lasts_ns: int, n_ahead: int) -> Turn:
    """Run steps for so long, with so many fetches waiting at any time."""
    model.stopwatch.finish()
    steps, fetches = list[_Step](), deque[object]()
    n_fetched, began_ns = 0, perf_counter_ns()
    while len(steps) < N_IN_FLIGHT or steps[-1].seen_ns < began_ns + lasts_ns:
        fetches.extend([_fetch(model) for _ in range(n_ahead - len(fetches))])
        layers, end = _asked(model, rows)
        model.serving.streams.wait(steps[-1].end if steps else end)
        while fetches and model.serving.streams.is_reached(fetches[0]):
            fetches.popleft()
            n_fetched += 1
        steps.append(_Step(layers, end, perf_counter_ns(), n_fetched))
    model.stopwatch.finish()
    timed = [step for step in steps if step.seen_ns >= began_ns + lasts_ns // 2]
    if len(timed) < N_IN_FLIGHT:
        timed = steps[-N_IN_FLIGHT:]
    first, last = timed[0], timed[-1]
    fetched_ns = (last.seen_ns - first.seen_ns) / max(1, last.n_fetched - first.n_fetched)
    return Turn(
        layers_ns=round(median(model.serving.streams.between_ns(*step.layers) for step in timed)),
        fetch_ns=round(fetched_ns) if n_ahead else 0,
        began_ns=first.seen_ns,
        ended_ns=last.seen_ns,
    )


def _asked(model: Specimen, rows: Sequence[Row]) -> tuple[tuple[object, object], object]:
    """Ask the device for a step: events around its layers, and behind it."""
    streams = model.serving.streams
    passed = model.serving.forwards[0].run(rows)
    with streams.computing():
        end = streams.mark()
    streams.take_stalls()
    return passed.layers, end


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A step among its like, in ns: its layers, and all of it until the next one's end; medians.

    Of whole steps the median is of means of two: where two slots alternate, so may steps.
    """

    layers_ns: int
    step_ns: int


def steady(model: Specimen, rows: Sequence[Row]) -> Steady:
    """Run one step after the other as a server does, each waited for, until clocks have settled, and time some."""
    streams = model.serving.streams

    def once() -> tuple[tuple[object, object], object]:
        layers, end = _asked(model, rows)
        streams.wait(end)
        return layers, end

    warm_up = [once() for _ in range(N_FEWEST)]
    about_ns = max(1, streams.between_ns(warm_up[-2][1], warm_up[-1][1]))
    for _ in range(min(MOST_BEFORE, ceil(SETTLE_NS / about_ns))):
        once()
    timed = [once() for _ in range(N_TIMED + 1)]
    each_ns = [streams.between_ns(before, after) for (_, before), (_, after) in pairwise(timed)]
    return Steady(
        layers_ns=round(median(streams.between_ns(*layers) for layers, _ in timed)),
        step_ns=round(median((one + two) / 2 for one, two in pairwise(each_ns))),
    )


def fetch_ns(model: Specimen) -> int:
    """Time in which one layer is fetched, of several in a row."""
    return last_ns(model, [lambda: _fetch(model)], model.grid.n_copies)[0] // model.grid.n_copies


def _fetch(model: Specimen) -> object:
    """Fetch a layer into its own home: the bytes stay the same."""
    memory = model.memory
    layer = min(memory.models[0].lendable)
    return model.serving.streams.fetch(memory.weights(0, layer), memory.master(0, layer))
