"""The parts of steps of one model, and whole steps as a server runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import log1p

import torch

from executor.models.decoder import Decoder
from executor.models.graphs import Graphs
from executor.models.step import PADDING_SLOT, Row, StepInput
from executor.profiling.specimen import Specimen
from executor.profiling.stopwatch import Size, timing
from executor.transfer.cuda import CudaStreams
from traces.measured.device_tables import Part, Timing

SHORT_PROMPT = 4
"""Tokens of the prompts whose launching is timed: it takes as long for any."""

EVEN = (64, 1024)
"""Sequences and context of the decode step that papers and benchmarks quote."""


@torch.inference_mode()
def measure_steps(model: Specimen) -> Iterator[Timing]:
    """Measure everything of a model but the loop around it."""
    yield from others(model)
    yield from decodes(model)
    yield from prefills(model)
    yield from mixed(model)
    yield from launches(model)


def others(model: Specimen) -> Iterator[Timing]:
    """Layers without attention, from graphs where the executor has such."""
    streams = model.serving.streams
    graphs = Graphs(streams.compute) if isinstance(streams, CudaStreams) else None
    largest = max((*model.padding.decode_seqs, *model.padding.prefill_tokens), default=0)
    for n_tokens in model.grid.tokens:
        step = unattended(model, n_tokens)
        run = _layers(model, model.bare, step)
        if graphs is not None and n_tokens <= largest:
            with streams.computing():
                run()  # compiles what a capture could not
            model.stopwatch.finish()
            run = _layers(model, model.bare, step, graphs)
        times_ns = model.stopwatch.on_device(run)
        yield timing(Part.OTHERS, Size(0, n_tokens), times_ns, n_parts=model.n_layers_timed)


def decodes(model: Specimen) -> Iterator[Timing]:
    """Decode steps as a server runs them: a layer, the head, all; and attention alone."""
    for n_seqs in model.grid.batches:
        heads_ns: list[int] = []
        for context in _contexts(model, n_seqs):
            contexts = ragged(n_seqs, context, model.shape.max_context_tokens)
            rows = model.rows([(1, each - 1) for each in contexts])
            layers_ns, after_ns = served(model, rows)
            size = Size(n_seqs, n_seqs, sum(contexts))
            yield timing(Part.DECODE_LAYER, size, layers_ns, n_parts=model.shape.n_layers)
            yield timing(Part.DECODE_STEP, size, added(layers_ns, after_ns))
            heads_ns += after_ns
            alone_ns = model.stopwatch.on_device(_attention(model, rows))
            yield timing(Part.DECODE_ATTENTION, size, alone_ns, n_parts=model.n_layers_timed)
        if heads_ns:
            yield timing(Part.HEAD, Size(n_seqs, n_seqs), heads_ns)
    yield from _even_decode(model)
    unsampled = [replace(row, samples=False) for row in model.rows([(SHORT_PROMPT, 0)])]
    yield timing(Part.HEAD, Size(0, SHORT_PROMPT), served(model, unsampled)[1])


def prefills(model: Specimen) -> Iterator[Timing]:
    """Steps of prefills as a server runs them: whole prompts, behind other tokens, together; and attention alone."""
    grid = model.grid
    alone = (*((1, n_new, 0) for n_new in grid.prompts), *((1, *each) for each in grid.behind))
    for n_seqs, n_new, n_before in (*alone, *((*each, 0) for each in grid.together)):
        if not model.holds([(n_new, n_before)] * n_seqs):
            continue
        rows, size = model.rows([(n_new, n_before)] * n_seqs), Size(n_seqs, n_seqs * n_new, n_before)
        layers_ns, after_ns = served(model, rows)
        yield timing(Part.PREFILL_LAYER, size, layers_ns, n_parts=model.shape.n_layers)
        yield timing(Part.PREFILL_STEP, size, added(layers_ns, after_ns))
        attention_ns = model.stopwatch.on_device(_attention(model, rows))
        yield timing(Part.PREFILL_ATTENTION, size, attention_ns, n_parts=model.n_layers_timed)
    for n_seqs, n_new in grid.prefills:
        if model.holds([(n_new, 0)] * n_seqs):
            times_ns = added(*served(model, model.rows([(n_new, 0)] * n_seqs)))
            yield timing(Part.PREFILL_STEP, Size(n_seqs, n_seqs * n_new), times_ns)


def mixed(model: Specimen) -> Iterator[Timing]:
    """A prompt beside decodes, as a server with chunked prefill runs them."""
    for n_decodes, context, n_new in model.grid.mixed:
        contexts = ragged(n_decodes, context, model.shape.max_context_tokens)
        sequences = [*((1, each - 1) for each in contexts), (n_new, 0)]
        if model.holds(sequences):
            size = Size(n_decodes + 1, n_decodes + n_new, sum(contexts))
            yield timing(Part.MIXED_STEP, size, added(*served(model, model.rows(sequences))))


def launches(model: Specimen) -> Iterator[Timing]:
    """What the host takes to launch a layer of a step with prompts; on a CPU that is the layer itself."""
    forward = model.serving.forwards[0]
    for n_seqs in model.grid.launches:
        size = Size(n_seqs, n_seqs - 1 + SHORT_PROMPT)
        if model.device.type == "cpu":
            yield timing(Part.LAUNCH, size, [0])
            continue
        rows = model.rows([*[(1, 0)] * (n_seqs - 1), (SHORT_PROMPT, 0)])
        times_ns = model.stopwatch.on_host(_layers(model, model.decoder, model.step(rows)))
        yield timing(Part.LAUNCH, size, times_ns, n_parts=model.n_layers_timed)
        if model.padding.prefill_rows(n_seqs * SHORT_PROMPT, n_seqs) is not None:
            prompts = model.rows([(SHORT_PROMPT, 0)] * n_seqs)
            times_ns = model.stopwatch.on_host(partial(forward.run, prompts))
            size = Size(n_seqs, n_seqs * SHORT_PROMPT)
            yield timing(Part.GRAPHED_LAUNCH, size, times_ns, n_parts=model.shape.n_layers)


def ragged(n_seqs: int, mean: int, longest: int) -> list[int]:
    """Contexts from short to long with a given mean, as a server has them: quantiles of an exponential distribution.

    Contexts that ran together over ShareGPT had a deviation of 0.76 to 0.86 of their mean, the longest 2.9 to 3.4 times
    the mean (docs/measured, exec_single and exec_c1; those of 20 such quantiles: 0.9 and 3.7). Where the longest
    would be longer than may be, all are drawn towards the mean alike.
    """
    if n_seqs == 1:
        return [mean]
    quantiles = [-log1p(-(index + 0.5) / n_seqs) for index in range(n_seqs)]
    centre = sum(quantiles) / n_seqs
    reach = min(mean - 1, (longest - mean) / (quantiles[-1] / centre - 1))
    ends = [0, *(round(end) for end in accumulate(mean + reach * (each / centre - 1) for each in quantiles))]
    return [end - begin for begin, end in pairwise(ends)]


def _contexts(model: Specimen, n_seqs: int) -> list[int]:
    """Mean contexts of a batch: those of the grid that fit, and the most that the KV range and positions allow."""
    per_seq = len(model.blocks) // n_seqs
    most = min(
        model.shape.max_context_tokens, (per_seq - 1) * model.block_tokens
    )  # ragged contexts lose part of a block
    return sorted({*(each for each in model.grid.contexts if each <= most), *([most] if most >= 1 else [])})


def served(model: Specimen, rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Device times of a step's layers, and from their end to that of the step."""
    streams, forward = model.serving.streams, model.serving.forwards[0]
    after_ns: list[int] = []

    def once() -> int:
        passed = forward.run(rows)
        with streams.computing():
            end = streams.mark()
        streams.wait(end)
        streams.take_stalls()
        after_ns.append(streams.between_ns(passed.layers[1], end))
        return streams.between_ns(*passed.layers)

    layers_ns = model.stopwatch.repeated(once)
    return layers_ns, after_ns[-len(layers_ns) :]


def _even_decode(model: Specimen) -> Iterator[Timing]:
    n_seqs, context = EVEN
    if n_seqs in model.grid.batches and model.holds([(1, context - 1)] * n_seqs):
        layers_ns, after_ns = served(model, model.rows([(1, context - 1)] * n_seqs))
        yield timing(Part.EVEN_DECODE_STEP, Size(n_seqs, n_seqs, n_seqs * context), added(layers_ns, after_ns))


def added(layers_ns: Sequence[int], after_ns: Sequence[int]) -> list[int]:
    """Whole steps out of their layers and what is behind these."""
    return [sum(both) for both in zip(layers_ns, after_ns, strict=True)]


def unattended(model: Specimen, n_tokens: int) -> StepInput:
    """A step of tokens that attend to nothing."""
    with model.serving.streams.computing():
        zeros = torch.zeros(n_tokens, dtype=torch.int64, device=model.device)
        return StepInput(
            token_ids=zeros + torch.arange(n_tokens, device=model.device) % model.shape.vocab,
            positions=zeros,
            slots=zeros + PADDING_SLOT,
            block_tables=zeros.int()[:, None],
            contexts=zeros.int(),
            prefills=None,
            sampled=zeros[:1],
        )


def _layers(model: Specimen, decoder: Decoder, step: StepInput, graphs: Graphs | None = None) -> Callable[[], None]:
    """Run some layers on the current stream, kernel by kernel or from graphs."""
    weights = [decoder.layer(region) for region in model.regions[: model.n_layers_timed]]
    with model.serving.streams.computing():
        first = decoder.embed(step)
        hidden = torch.empty_like(first)

    def run() -> None:
        hidden.copy_(first)
        for layer, its in enumerate(weights):
            work = partial(decoder.run_layer, its, layer, hidden, model.kv, step)
            if graphs is None:
                work()
            else:
                graphs.replay(("others", layer, 0, step.n_rows), work)

    return run


def _attention(model: Specimen, rows: Sequence[Row]) -> Callable[[], None]:
    """Attend in some layers, what is new stored before."""
    step = model.step(rows)
    with model.serving.streams.computing():
        qkv = torch.randn(step.n_rows, model.decoder.spec.n_qkv_heads * model.shape.head_dim, device=model.device)
        qkv = qkv.to(model.kv.dtype)
    rotary = model.decoder.attention.rotary

    def run() -> None:
        for layer in range(model.n_layers_timed):
            query = model.kernels.store(qkv, model.kv, layer, step, rotary)
            attend = model.kernels.decode if step.prefills is None else model.kernels.prefill
            attend(query, model.kv, layer, step)

    return run
