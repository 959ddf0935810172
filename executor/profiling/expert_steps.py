"""The parts of steps of a mixture of experts, and whole steps as a server runs them.

Decode steps run as graphs and are measured whole; their experts are measured beside them, by tokens, for how many
experts a step reads follows from its tokens and not from what it is padded to. Every other step is launched kernel by
kernel: its parts are measured alone, as the device sees them; how long the host takes to ask for them the loop tells.

Routers with random weights send the tokens of one prompt to few experts, for attention has them all look alike, and
sequences to experts of their own. Experts of decodes and of a prompt are therefore measured apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch

from executor.models.graphs import Graphs
from executor.models.moe import Routed
from executor.models.moe_decoder import MoeDecoder
from executor.models.step import Row, StepInput
from executor.profiling.expert_specimen import ExpertSpecimen
from executor.profiling.specimen import Specimen
from executor.profiling.steps import added, decodes, mixed, prefills, ragged, served, unattended
from executor.profiling.stopwatch import Size, timing
from executor.transfer.cuda import CudaStreams
from traces.measured.device_tables import Part, Timing

DECODE_CONTEXT = 128
"""Of the steps of decodes whose routing is measured: each reads K and V of its own, at random as its tokens are."""


@torch.inference_mode()
def measure_expert_steps(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """Measure everything of a model but the loop around it."""
    model = specimen.model
    yield from others(specimen)
    yield from decodes(model)
    yield from between(model)
    yield from experts(specimen, [[(1, DECODE_CONTEXT - 1)] * n for n in _numbers_of_decodes(model)])
    yield from experts(specimen, [[(n_tokens, 0)] for n_tokens in model.grid.tokens if n_tokens > 1])
    yield from prefills(model)
    redrawn(model)
    yield from mixed(model)


def _numbers_of_decodes(model: Specimen) -> list[int]:
    return [n for n in model.grid.tokens if n <= max(model.grid.batches)]


def redrawn(model: Specimen) -> None:
    """Fill the KV cache at random once more: sequences that read what one prompt has left there are routed alike."""
    with model.serving.streams.computing():
        model.kv[: max(model.blocks) + 1].normal_()
    model.stopwatch.finish()


def others(specimen: ExpertSpecimen) -> Iterator[Timing]:
    """The first pieces of layers, norms, projections and router, without attention."""
    model, bare = specimen.model, specimen.bare
    for n_tokens in model.grid.tokens:
        run = _firsts(specimen, bare, unattended(model, n_tokens))
        times_ns = model.stopwatch.on_device(run)
        yield timing(Part.OTHERS, Size(0, n_tokens), times_ns, n_parts=len(specimen.timed))


def experts(specimen: ExpertSpecimen, steps: Iterable[Sequence[tuple[int, int]]]) -> Iterator[Timing]:
    """The second pieces of layers; of steps of decodes from graphs.

    Args:
        steps: sequences of each, (new tokens, tokens before). What does not fit is left out.
    """
    model = specimen.model
    streams = model.serving.streams
    graphs = Graphs(streams.compute) if isinstance(streams, CudaStreams) else None
    for sequences in steps:
        if not model.holds(sequences):
            continue
        n_tokens = sum(n_new for n_new, _ in sequences)
        routed, n_used = _routed(specimen, model.rows(sequences))
        run = _experts(specimen, routed)
        if graphs is not None and n_tokens == len(sequences):
            with streams.computing():
                run()  # compiles what a capture could not
            model.stopwatch.finish()
            run = partial(graphs.replay, ("experts", 0, 0, n_tokens), run)
        size = Size(len(sequences), n_tokens, n_experts=n_used)
        yield timing(Part.EXPERTS, size, model.stopwatch.on_device(run), n_parts=len(routed))


def between(model: Specimen) -> Iterator[Timing]:
    """Decode steps of sizes to which none is padded."""
    for n_seqs, mean in model.grid.between:
        contexts = ragged(n_seqs, mean, model.shape.max_context_tokens)
        sequences = [(1, each - 1) for each in contexts]
        if n_seqs <= max(model.grid.batches) and model.holds(sequences):
            times_ns = added(*served(model, model.rows(sequences)))
            yield timing(Part.DECODE_STEP, Size(n_seqs, n_seqs, sum(contexts)), times_ns)


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
