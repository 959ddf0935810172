"""Arrivals with their models, and lengths, made requests one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from policies.types import NS_PER_S, Arrival, ModelShape, Request
from traces.formats import Pieces, TraceRow, first_tokens
from traces.workload.counts import WorkloadCounts
from traces.workload.limits import Fitted, Limits

Labelled = tuple[int, int, TraceRow | None]
"""Arrival time in ns, model, and the row of the trace if there is one."""

Drawn = Iterator[tuple[int, int]] | None
"""(prompt, output) tokens without end; ``None``: those of the rows."""


def emitted(
    arrivals: Iterable[Labelled],
    drawn: Sequence[Drawn],
    shapes: Sequence[ModelShape],
    limits: Limits,
    counts: WorkloadCounts,
) -> Iterator[Arrival]:
    """Number the requests that fit from 0 on, and count what becomes of all of them.

    Args:
        arrivals: in order of time.
        drawn: lengths for each model.
        shapes: of the models.
        counts: is added to.

    Raises:
        ValueError: with ``overlong=error``, a request that is too long.
    """
    contexts_tokens = [shape.max_context_tokens for shape in shapes]
    request_id = 0
    for arrival_ns, model, row in arrivals:
        tally = counts.models[model]
        tally.n_offered += 1
        n_prompt_tokens, n_output_tokens = _tokens(row, drawn[model])
        try:
            fitted = limits.fit(n_prompt_tokens, n_output_tokens, contexts_tokens[model])
        except ValueError as error:
            name, at_s = shapes[model].name, arrival_ns / NS_PER_S
            raise ValueError(f"model {name}, arrival at {at_s:.3f} s: {error}") from None
        if fitted is None:
            tally.n_dropped += 1
            continue
        tally.n_emitted += 1
        tally.n_clipped += fitted.was_clipped
        tally.n_cut += fitted.was_cut
        counts.last_arrival_ns = arrival_ns
        prompt = None if row is None or row.prompt is None else _prompt(row.prompt, fitted, drawn[model])
        request = Request(request_id, model, arrival_ns, fitted.n_prompt_tokens, fitted.max_output_tokens, prompt)
        yield Arrival(request, fitted.n_output_tokens)
        request_id += 1


def _tokens(row: TraceRow | None, drawn: Drawn) -> tuple[int, int]:
    """(prompt, output) tokens of the next request: drawn, or those of its row."""
    if drawn is not None:
        return next(drawn)
    assert row is not None  # ``workload`` refuses lengths of a trace without a trace
    return row.n_prompt_tokens, row.n_output_tokens


def _prompt(prompt: Pieces, fitted: Fitted, drawn: Drawn) -> Pieces | None:
    """What a row's prompt consists of, cut to what the server takes; other lengths have other contents."""
    return first_tokens(prompt, fitted.n_prompt_tokens) if drawn is None else None
