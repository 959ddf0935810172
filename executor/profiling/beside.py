"""Copies beside computation: by how much each takes longer for the other, in steps one behind the other as in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter_ns

from executor.models.step import Row
from executor.profiling.machine import last_ns
from executor.profiling.specimen import Specimen
from executor.profiling.steps import ragged
from policies.types import NS_PER_S

BESIDE = (64, 512)
"""Sequences and mean context of the decode step that runs beside copies."""

PREFILL_BESIDE = 2048
"""Tokens of the prompt that does."""

MARGIN = 1.5
"""Steps beside which fetches are timed last longer than those alone by this: they stretch."""

SETTLE_NS = NS_PER_S // 4
"""Of steps before those that count: clocks follow the power that is drawn within some tens of milliseconds."""

N_FEWEST, N_TIMED = 2, 10
"""Steps before those that count at least, and steps that do."""

MOST_BEFORE = 100
"""Steps before those that count at most: a tiny model on a CPU has no clocks to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How much longer computation and fetches take beside each other, as shares; at least 0.

    Attributes:
        decode, prefill: a step beside fetches.
        copies: fetches beside the decode step.
    """

    decode: float
    prefill: float
    copies: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A step among its like, in ns: its layers, and all of it until the next one's end; medians.

    Of whole steps the median is of means of two: where two slots alternate, so may steps.
    """

    layers_ns: int
    step_ns: int


def beside_copies(model: Specimen) -> Beside:
    """Run decode and prefill steps while layers are fetched without a break, and each of it alone."""
    n_seqs = min(BESIDE[0], max(model.grid.batches))
    context = min(
        BESIDE[1], model.shape.max_context_tokens // 2, (len(model.blocks) // n_seqs - 1) * model.block_tokens
    )
    contexts = ragged(n_seqs, max(1, context), model.shape.max_context_tokens)
    prompt = min(PREFILL_BESIDE, model.shape.max_context_tokens, len(model.blocks) * model.block_tokens)
    decode = model.rows([(1, each - 1) for each in contexts])
    return Beside(
        decode=slower_beside_copies(model, decode),
        prefill=slower_beside_copies(model, model.rows([(prompt, 0)])),
        copies=copies_slower_beside(model, decode),
    )


def slower_beside_copies(model: Specimen, rows: Sequence[Row]) -> float:
    """Tell by which share the layers of a step take longer while layers are fetched without a break; at least 0.

    Alone, beside fetches, and alone again: what drifts meanwhile is in neither.
    """
    one, other = steady(model, rows), steady(model, rows, fetching=True)
    alone_ns = (one.layers_ns + steady(model, rows).layers_ns) / 2
    return max(0.0, other.layers_ns / alone_ns - 1)


def copies_slower_beside(model: Specimen, rows: Sequence[Row]) -> float:
    """Tell by which share fetches take longer while steps run without a break; at least 0, and 0 on a CPU."""
    if model.device.type != "cuda":  # there a copy is made by what computes
        return 0.0
    streams, forward = model.serving.streams, model.serving.forwards[0]
    alone_ns = fetch_ns(model)
    step_ns = steady(model, rows).step_ns
    n_steps = 2 + ceil(MARGIN * alone_ns * model.grid.n_copies / step_ns)  # the first passes while others are launched
    lasted_ns: list[int] = []
    for _ in range(model.grid.n_repeats):
        model.stopwatch.finish()
        for _ in range(n_steps):
            forward.run(rows)
        began_ns = perf_counter_ns()
        fetches = [_fetch(model) for _ in range(model.grid.n_copies)]
        streams.wait(fetches[-1])
        lasted_ns.append(perf_counter_ns() - began_ns)
        streams.take_stalls()
    model.stopwatch.finish()
    return max(0.0, median(lasted_ns) / (alone_ns * model.grid.n_copies) - 1)


def steady(model: Specimen, rows: Sequence[Row], *, fetching: bool = False) -> Steady:
    """Run one step after the other as a server does, until clocks have settled, and time some.

    Args:
        model: on the device.
        rows: the step's sequences.
        fetching: let layers be fetched without a break meanwhile.
    """
    streams, forward = model.serving.streams, model.serving.forwards[0]
    fetches: list[object] = []

    def once(n_fetches: int) -> tuple[object, tuple[object, object]]:
        fetches.extend(_fetch(model) for _ in range(n_fetches))
        passed = forward.run(rows)
        with streams.computing():
            end = streams.mark()
        streams.wait(end)
        streams.take_stalls()
        return end, passed.layers

    warm_up = [once(0) for _ in range(N_FEWEST)]
    about_ns = max(1, streams.between_ns(warm_up[-2][0], warm_up[-1][0]))
    n_fetches = 0
    if fetching:  # one more than a step lasts, so that the link is never idle; on a CPU there is nothing beside
        n_fetches = 1 + (about_ns // fetch_ns(model) if model.device.type == "cuda" else 0)
    for _ in range(min(MOST_BEFORE, ceil(SETTLE_NS / about_ns))):
        once(n_fetches)
    timed = [once(n_fetches) for _ in range(N_TIMED + 1)]
    for mark in fetches[-1:]:
        streams.wait(mark)
    each_ns = [streams.between_ns(before, after) for (before, _), (after, _) in pairwise(timed)]
    return Steady(
        layers_ns=round(median(streams.between_ns(*layers) for _, layers in timed)),
        step_ns=round(median((one + two) / 2 for one, two in pairwise(each_ns))),
    )


def fetch_ns(model: Specimen) -> int:
    """Time in which one layer is fetched, of several in a row."""
    return last_ns(model, [lambda: _fetch(model)], model.grid.n_copies)[0] // model.grid.n_copies


def _fetch(model: Specimen) -> object:
    """Fetch a layer into its own home: the bytes stay the same."""
    memory = model.serving.memory
    layer = min(memory.models[0].lendable)
    return model.serving.streams.fetch(memory.weights(0, layer), memory.master(0, layer))
