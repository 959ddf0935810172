# pyright: basic
# (torch and triton leave parts of their interfaces untyped)
"""Measure decode attention over paged KV on a GPU: how fast is it, is it right, is the chosen tiling the better one?

Run: python -m bench.attention --out attention.json
     python -m bench.attention --models opt_13b --tilings 64:4:2:528:4 32:2:2:528 16:1:3:1056    others besides

A case is timed as a CUDA graph of one call a layer, each reading its own layer of the block-major
KV range through a random block table, as a model does; bytes are those of K and V. The error is that
of a few sequences against softmax(QK)V in float64.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from bench.machine import gpu, machine, write
from executor.attention.prefill import gather
from executor.attention.tiling import GROUPED_HEADS, SINGLE_HEADS, SPREAD, Tiling, tiling_for
from executor.attention.triton_paged import TritonKernels
from executor.models.spec import DecoderSpec, spec_of
from executor.models.step import Row, StepInput, compose
from executor.profiling.steps import ragged
from policies.types import ModelShape

MODELS = Path(__file__).parents[1] / "conf" / "model"
BLOCK_TOKENS = 16
POOL_BYTES = 60 * 2**30
COPY_BYTES_PER_S = 4285e9
"""What a device-to-device copy reaches on an H200, read and write together; printed beside each rate."""

GRID_MODELS = ("opt_13b", "opt_30b", "llama_2_13b", "llama_3_8b")
GRID_BATCHES = (1, 8, 16, 32, 64, 256)
GRID_CONTEXTS = (128, 1024, 4096)
RAGGED_BATCHES = (8, 16, 32, 64)
RAGGED_CONTEXT = 450
TILING = "TILE:WARPS:STAGES:PROGRAMS[:SPREAD]"
LONGEST = 2048
"""Tokens of the longest context among ragged ones: OPT's and Llama 2's."""


@dataclass(frozen=True, slots=True)
class Case:
    """One decode step of one model; ragged contexts have that mean and are as uneven as a server's."""

    model: str
    batch: int
    context: int
    is_ragged: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A case with the tiling that a server would take, and the times of all that were tried."""

    model: str
    batch: int
    context: int
    is_ragged: bool
    tiling: str
    us_per_layer: float
    gb_per_s: float
    relative_error: float
    is_repeatable: bool
    us_per_layer_by_tiling: dict[str, float]


def main() -> None:
    arguments = parse()
    tilings = list(dict.fromkeys([SINGLE_HEADS, SPREAD, GROUPED_HEADS, *arguments.tilings]))
    torch.manual_seed(0)
    pool = torch.empty(POOL_BYTES, dtype=torch.uint8, device="cuda")
    pool.view(torch.float16).normal_()
    rows: list[dict[str, object]] = []
    for case in grid(arguments.models):
        measured = measure(case, tilings, pool)
        print(line(measured), flush=True)
        rows.append(asdict(measured))
        if arguments.out:
            write(arguments.out, machine(*gpu()), rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for all rows, rewritten after each case")
    parser.add_argument("--models", nargs="*", default=list(GRID_MODELS), metavar="MODEL")
    parser.add_argument("--tilings", nargs="*", type=tiling, default=[], metavar=TILING)
    return parser.parse_args()


def tiling(text: str) -> Tiling:
    tile_tokens, n_warps, n_stages, n_programs, *spread = map(int, text.split(":"))
    return Tiling(
        tile_tokens=tile_tokens, n_warps=n_warps, n_stages=n_stages, n_programs=n_programs, spread=(*spread, 1)[0]
    )


def grid(models: Sequence[str]) -> Iterator[Case]:
    """The cases that fit into the pool, then ragged cases."""
    for model in models:
        spec = read_spec(model)
        for batch in GRID_BATCHES:
            for context in GRID_CONTEXTS:
                if n_layers_held(spec, batch, context) >= 2:
                    yield Case(model, batch, context, False)
        for batch in RAGGED_BATCHES:
            yield Case(model, batch, RAGGED_CONTEXT, True)


def read_spec(model: str) -> DecoderSpec:
    shape = ModelShape(**yaml.safe_load((MODELS / f"{model}.yaml").read_text()))
    return spec_of(shape, torch.float16)


def n_layers_held(spec: DecoderSpec, batch: int, context: int) -> int:
    """Layers of KV that the pool holds for a case, as many as the model has at most."""
    per_layer = spec.shape.block_bytes(BLOCK_TOKENS) // spec.shape.n_layers
    return min(spec.shape.n_layers, POOL_BYTES // (per_layer * batch * (-(-context // BLOCK_TOKENS) + 1)))


def measure(case: Case, tilings: Sequence[Tiling], pool: Tensor) -> Measured:
    """Time every tiling on a case, and hold the chosen one against float64."""
    shape = read_spec(case.model).shape
    kv = kv_of(case, pool)
    step = step_of(case, kv.shape[0])
    query = torch.randn(case.batch, shape.n_heads, shape.head_dim, dtype=torch.float16, device="cuda")
    times = {str(each): us_per_layer(TritonKernels(each), query, kv, step) for each in tilings}
    chosen = str(tiling_for(shape.n_heads, shape.n_kv_heads, case.batch))
    attended, again = (TritonKernels().decode(query, kv, 0, step) for _ in range(2))
    n_bytes = int(step.contexts.sum()) * 2 * kv[0, 0, 0, 0].numel() * kv.itemsize
    return Measured(
        **asdict(case),
        tiling=chosen,
        us_per_layer=times[chosen],
        gb_per_s=round(n_bytes / times[chosen] / 1e3, 1),
        relative_error=relative_error(attended, query, kv, step),
        is_repeatable=torch.equal(attended, again),
        us_per_layer_by_tiling=times,
    )


def kv_of(case: Case, pool: Tensor) -> Tensor:
    """A KV range over the whole pool, with as many layers as leave blocks enough for the case."""
    spec = read_spec(case.model)
    n_layers = n_layers_held(spec, case.batch, 2 * case.context if case.is_ragged else case.context)
    block_bytes = spec.shape.block_bytes(BLOCK_TOKENS) // spec.shape.n_layers * n_layers
    n_blocks = POOL_BYTES // block_bytes
    kv_shape = (n_blocks, n_layers, *spec.kv_shape(n_blocks, BLOCK_TOKENS)[2:])
    return pool[: n_blocks * block_bytes].view(torch.float16).view(kv_shape)


def step_of(case: Case, n_blocks: int) -> StepInput:
    """A decode step whose sequences have their blocks scattered over the range."""
    contexts = [case.context] * case.batch
    if case.is_ragged:
        contexts = ragged(case.batch, case.context, LONGEST)
    free = iter(torch.randperm(n_blocks).tolist())
    rows = [
        Row(token_ids=[0], n_before=context - 1, blocks=[next(free) for _ in range(-(-context // BLOCK_TOKENS))])
        for context in contexts
    ]
    widest = max(len(row.blocks) for row in rows)
    return compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=widest, device=torch.device("cuda"))


def relative_error(attended: Tensor, query: Tensor, kv: Tensor, step: StepInput) -> float:
    """Largest error of three sequences, as a share of the norm of what float64 gives."""
    errors: list[float] = []
    for row in {0, step.n_decodes // 2, step.n_decodes - 1}:
        context = int(step.contexts[row])
        key, value = gather(kv, 0, step.block_tables[row, : -(-context // BLOCK_TOKENS)].long(), context)
        exact = functional.scaled_dot_product_attention(
            query[row, :, None].double(),
            key.transpose(0, 1).double(),
            value.transpose(0, 1).double(),
            enable_gqa=True,
        )[:, 0]
        errors.append(float((attended[row] - exact).norm() / exact.norm()))
    return max(errors)


def us_per_layer(kernels: TritonKernels, query: Tensor, kv: Tensor, step: StepInput) -> float:
    """Median time of one layer in a graph that runs every layer once, in microseconds."""
    kernels.decode(query, kv, 0, step)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(kv.shape[1]):
            kernels.decode(query, kv, layer, step)
    times: list[float] = []
    for _ in range(13):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / kv.shape[1])
    return round(statistics.median(times[3:]), 2)


def line(row: Measured) -> str:
    kind = "ragged" if row.is_ragged else ""
    rate = row.gb_per_s * 1e9 / COPY_BYTES_PER_S
    best, us = min(row.us_per_layer_by_tiling.items(), key=lambda item: item[1])
    trust = f"error {row.relative_error:.1e}" + ("" if row.is_repeatable else ", NOT REPEATABLE")
    return (
        f"{row.model:12} {row.batch:4} x {row.context:5} {kind:6} {row.tiling:16} {row.us_per_layer:9.2f} us "
        f"{row.gb_per_s:8.1f} GB/s {rate:6.1%}  {trust}"
        + ("" if best == row.tiling else f"; {best} takes {us / row.us_per_layer - 1:+.1%}")
    )


if __name__ == "__main__":
    main()
