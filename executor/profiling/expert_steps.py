"""The parts of steps of a mixture of experts, and whole steps as a server runs them.

Decode steps run as graphs and are measured whole; their experts are measured beside them, by tokens, for how many
experts a step reads follows from its tokens and not from what it is padded to. Every other step is launched kernel by
kernel: its parts are measured alone, as the device sees them and as the host asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from executor.models.graphs import Graphs
from executor.models.moe import Routed
from executor.models.moe_decoder import MoeDecoder
from executor.models.step import Row, StepInput
from executor.profiling.expert_specimen import ExpertSpecimen
from executor.profiling.specimen import Specimen
from executor.profiling.steps import SHORT_PROMPT, added, decodes, mixed, prefills, ragged, served, unattended
from executor.profiling.stopwatch import Size, timing
from executor.transfer.cuda import CudaStreams
from traces.measured.device_tables import Part, Timing

DECODE_CONTEXT = 512
"""Mean context of the steps whose routing is measured; as long as the KV cache allows where that is less."""


@torch.inference_mode()
def measure_expert_steps(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """Measure everything of a model but the loop around it."""
    yield from others(specimen)
    yield from experts(specimen)
    yield from decodes(specimen.model)
    yield from between(specimen.model)
    yield from prefills(specimen.model)
    yield from mixed(specimen.model)
    yield from launches(specimen)


def others(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """The first pieces of layers, norms, projections and router, without attention."""
    model, bare = specimen.model, specimen.bare
    for n_tokens in model.grid.tokens:
        run = _firsts(specimen, bare, unattended(model, n_tokens))
        times_ns = model.stopwatch.on_device(run)
        yield timing(Part.OTHERS, Size(0, n_tokens), times_ns, n_parts=len(specimen.timed))


def experts(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """The second pieces of layers, from graphs up to as many tokens as decode steps have."""
    model = specimen.model
    streams = model.serving.streams
    graphs = Graphs(streams.compute) if isinstance(streams, CudaStreams) else None
    for n_tokens in model.grid.tokens:
        rows = _rows(model, n_tokens)
        if rows is None:
            continue
        routed, n_used = _routed(specimen, rows)
        run = _experts(specimen, routed)
        if graphs is not None and n_tokens <= max(model.padding.decode_seqs, default=0):
            with streams.computing():
                run()  # compiles what a capture could not
            model.stopwatch.finish()
            run = partial(graphs.replay, ("experts", 0, 0, n_tokens), run)
        size = Size(0, n_tokens, n_experts=n_used)
        yield timing(Part.EXPERTS, size, model.stopwatch.on_device(run), n_parts=len(routed))


def between(model: Specimen) -> Iterator[Timing]:
    """Decode steps of sizes to which none is padded."""
    for n_seqs, mean in model.grid.between:
        contexts = ragged(n_seqs, mean, model.shape.max_context_tokens)
        sequences = [(1, each - 1) for each in contexts]
        if n_seqs <= max(model.grid.batches) and model.holds(sequences):
            times_ns = added(*served(model, model.rows(sequences)))
            yield timing(Part.DECODE_STEP, Size(n_seqs, n_seqs, sum(contexts)), times_ns)


def launches(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """What the host takes to launch a layer of a step with prompts; on a CPU that is the layer itself."""
    model = specimen.model
    for n_seqs in model.grid.launches:
        size = Size(n_seqs, n_seqs - 1 + SHORT_PROMPT)
        if model.device.type == "cpu":
            yield timing(Part.LAUNCH, size, [0])
            continue
        rows = model.rows([*[(1, 0)] * (n_seqs - 1), (SHORT_PROMPT, 0)])
        times_ns = model.stopwatch.on_host(_whole_layers(specimen, rows))
        yield timing(Part.LAUNCH, size, times_ns, n_parts=len(specimen.timed))


def _rows(model: Specimen, n_tokens: int) -> list[Row] | None:
    """A step of so many tokens: decodes up to as many as a step has, else a prompt; ``None`` if it does not fit."""
    sequences = [(n_tokens, 0)]
    if n_tokens <= max(model.grid.batches):
        most = min(model.shape.max_context_tokens, (len(model.blocks) // n_tokens - 1) * model.block_tokens)
        contexts = ragged(n_tokens, max(1, min(DECODE_CONTEXT, most)), model.shape.max_context_tokens)
        sequences = [(1, context - 1) for context in contexts]
    return model.rows(sequences) if model.holds(sequences) else None


def _routed(specimen: ExpertSpecimen, rows: Sequence[Row]) -> tuple[dict[int, Routed], int]:
    """Run a step; what its experts are to compute in the timed layers, and how many of all layers' it uses on average.

    The routers are random as all weights, and see what the layers before them have made of the tokens.
    """
    model, decoder = specimen.model, specimen.decoder
    routed, n_used = dict[int, Routed](), list[torch.Tensor]()
    step = model.step(rows)
    with model.serving.streams.computing():
        hidden = decoder.outer.embed(step)
        for layer, weights in enumerate(specimen.layers):
            its = decoder.attend_and_route(weights, layer, hidden, model.kv, step)
            n_used.append((its.starts.diff() > 0).sum())
            if layer in specimen.timed:
                routed[layer] = its
            decoder.run_experts(hidden, its, specimen.tables[layer])
    model.stopwatch.finish()
    return routed, round(sum(int(each) for each in n_used) / len(n_used))


def _firsts(specimen: ExpertSpecimen, decoder: MoeDecoder, step: StepInput) -> Callable[[], None]:
    """Run the first pieces of the timed layers."""
    with specimen.model.serving.streams.computing():
        hidden = decoder.outer.embed(step)

    def run() -> None:
        for layer in specimen.timed:
            decoder.attend_and_route(specimen.layers[layer], layer, hidden, specimen.model.kv, step)

    return run


def _experts(specimen: ExpertSpecimen, routed: dict[int, Routed]) -> Callable[[], None]:
    """Run the experts of the timed layers as they are routed."""
    with specimen.model.serving.streams.computing():
        hidden = torch.zeros_like(next(iter(routed.values())).normed)

    def run() -> None:
        for layer, its in routed.items():
            specimen.decoder.run_experts(hidden, its, specimen.tables[layer])

    return run


def _whole_layers(specimen: ExpertSpecimen, rows: Sequence[Row]) -> Callable[[], None]:
    """Run both pieces of the timed layers, kernel by kernel."""
    model, decoder = specimen.model, specimen.decoder
    step = model.step(rows)
    with model.serving.streams.computing():
        hidden = decoder.outer.embed(step)

    def run() -> None:
        for layer in specimen.timed:
            its = decoder.attend_and_route(specimen.layers[layer], layer, hidden, model.kv, step)
            decoder.run_experts(hidden, its, specimen.tables[layer])

    return run
