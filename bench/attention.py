# pyright: basic
# (torch and triton leave parts of their interfaces untyped)
"""Measure decode attention over paged KV on a GPU: which kernel and tiling is the fastest, and is it right?

Run: python -m bench.attention --out rows.json            every tiling on three cases, then the best on a grid
     python -m bench.attention --out rows.json --grid-only --variants lanes-t32-h1-w4-s3-p1056
     python -m bench.attention --out rows.json --flashinfer      FlashInfer as well, where it is installed

A case is timed as a CUDA graph of one call a layer, each reading its own layer of the block-major
KV range through a random block table, as a model does; bytes are those of K and V. The error is that
of a few sequences against softmax(QK)V in float64.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from executor.attention.kernels import AttentionKernels
from executor.attention.prefill import gather
from executor.attention.triton_paged import Kernel, Tiling, TritonKernels
from executor.models.spec import DecoderSpec, spec_of
from executor.models.step import Row, StepInput, compose
from policies.types import ModelShape

MODELS = Path(__file__).parents[1] / "conf" / "model"
BLOCK_TOKENS = 16
POOL_BYTES = 60 * 2**30
COPY_BYTES_PER_S = 4285e9
"""What a device-to-device copy reaches on an H200, read and write together; printed beside each rate."""

N_PROGRAMS = (1056, 528, 2112, 4224, 8448)
"""Fewest programs of a launch; the first for every tiling, all for those that turn out fast."""

GRID_MODELS = ("opt_13b", "opt_30b", "llama_2_13b", "llama_3_8b")
GRID_BATCHES = (1, 8, 64, 256)
GRID_CONTEXTS = (128, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Case:
    """One decode step of one model; ragged contexts are spread over 1..2 * context."""

    model: str
    batch: int
    context: int
    is_ragged: bool


TUNED_CASES = (
    Case("opt_13b", 64, 1024, False),
    Case("opt_13b", 4, 1024, False),
    Case("llama_3_8b", 64, 2048, False),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant on one case. ``fault`` is why there is no measurement, or empty."""

    model: str
    batch: int
    context: int
    is_ragged: bool
    variant: str
    us_per_layer: float
    gb_per_s: float
    relative_error: float
    is_repeatable: bool
    fault: str
    device: str
    torch_version: str


def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    pool = torch.empty(POOL_BYTES, dtype=torch.uint8, device="cuda")
    pool.view(torch.float16).normal_()
    rows: list[Measured] = []
    finalists = arguments.variants
    if not arguments.grid_only:
        for case in TUNED_CASES:
            rows += measure_all(case, finalists or variants(), pool, arguments.flashinfer)
            save(rows, arguments.out)
        others = with_all_programs(best(rows, arguments.n_finalists))
        for case in TUNED_CASES:
            rows += measure_all(case, others, pool, False)
            save(rows, arguments.out)
        finalists = best(rows, arguments.n_finalists)
    for case in grid(arguments.models):
        rows += measure_all(case, finalists or variants(), pool, arguments.flashinfer)
        save(rows, arguments.out)
    print_table(rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for all rows, rewritten after each case")
    parser.add_argument("--grid-only", action="store_true", help="leave out the tuning cases")
    parser.add_argument("--variants", nargs="*", default=[], metavar="NAME", help=", ".join(variants()))
    parser.add_argument("--models", nargs="*", default=list(GRID_MODELS), metavar="MODEL")
    parser.add_argument("--n-finalists", type=int, default=2, help="variants of each kind that go on to the grid")
    parser.add_argument("--flashinfer", action="store_true")
    return parser.parse_args()


def variants() -> list[str]:
    """Name every tiling worth measuring."""
    dot = [(t, 1, w, s) for t, w in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4)) for s in (1, 2, 3, 4)]
    lanes = [(16, 1, 1, 1), (16, 1, 1, 3), (16, 1, 2, 4), (16, 2, 2, 3), (16, 2, 4, 3), (16, 4, 4, 1), (16, 4, 4, 2)]
    lanes += [(16, 4, 4, 3), (16, 4, 8, 3), (16, 8, 8, 2), (16, 8, 8, 3), (32, 1, 2, 2), (32, 1, 2, 3), (32, 1, 4, 1)]
    lanes += [(32, 1, 4, 2), (32, 1, 4, 3), (32, 1, 4, 4), (32, 2, 4, 2), (32, 2, 8, 3), (64, 1, 4, 1), (64, 1, 4, 2)]
    lanes += [(64, 1, 8, 2), (64, 1, 8, 3)]
    blocks = [(16, 1, 1, 3), (16, 1, 1, 5), (16, 1, 2, 4), (16, 1, 4, 4), (16, 2, 2, 4), (16, 2, 4, 4), (16, 4, 4, 2)]
    blocks += [(16, 4, 4, 3), (16, 4, 8, 3), (16, 8, 4, 2), (16, 8, 8, 2), (16, 8, 8, 3), (16, 8, 8, 4)]
    chosen = [("dot", *sizes) for sizes in dot] + [("lanes", *sizes) for sizes in lanes]
    chosen += [("blocks", *sizes) for sizes in blocks]
    return [f"{kernel}-t{t}-h{h}-w{w}-s{s}-p{N_PROGRAMS[0]}" for kernel, t, h, w, s in chosen]


def grid(models: Sequence[str]) -> Iterable[Case]:
    """The cases of the grid that fit into the pool, then one ragged case a model."""
    for model in models:
        spec = read_spec(model)
        for batch in GRID_BATCHES:
            for context in GRID_CONTEXTS:
                if n_layers_held(spec, batch, context) >= 2:
                    yield Case(model, batch, context, False)
        yield Case(model, 64, 512, True)


def read_spec(model: str) -> DecoderSpec:
    shape = ModelShape(**yaml.safe_load((MODELS / f"{model}.yaml").read_text()))
    return spec_of(shape, torch.float16)


def n_layers_held(spec: DecoderSpec, batch: int, context: int) -> int:
    """Layers of KV that the pool holds for a case, as many as the model has at most."""
    per_layer = spec.shape.block_bytes(BLOCK_TOKENS) // spec.shape.n_layers
    return min(spec.shape.n_layers, POOL_BYTES // (per_layer * batch * (-(-context // BLOCK_TOKENS) + 1)))


def measure_all(case: Case, names: Sequence[str], pool: Tensor, with_flashinfer: bool) -> list[Measured]:
    """Measure every named variant that applies to a case."""
    spec = read_spec(case.model)
    longest = 2 * case.context if case.is_ragged else case.context
    n_layers = n_layers_held(spec, case.batch, longest)
    block_bytes = spec.shape.block_bytes(BLOCK_TOKENS) // spec.shape.n_layers * n_layers
    n_blocks = POOL_BYTES // block_bytes
    kv_shape = (n_blocks, n_layers, *spec.kv_shape(n_blocks, BLOCK_TOKENS)[2:])
    kv = pool[: n_blocks * block_bytes].view(torch.float16).view(kv_shape)
    step = step_of(case, n_blocks)
    query = torch.randn(case.batch, spec.shape.n_heads, spec.shape.head_dim, dtype=torch.float16, device="cuda")
    group = spec.shape.n_heads // spec.shape.n_kv_heads
    kernels: dict[str, AttentionKernels] = {
        name: TritonKernels(Tiling.named(name)) for name in names if group == 1 or name.startswith(Kernel.DOT.value)
    }
    if with_flashinfer:
        from executor.attention.flashinfer_paged import FlashInferKernels

        kernels["flashinfer"] = FlashInferKernels(spec, BLOCK_TOKENS, query.device)
    return [measure(case, name, own, query, kv, step) for name, own in kernels.items()]


def step_of(case: Case, n_blocks: int) -> StepInput:
    """A decode step whose sequences have their blocks scattered over the range."""
    contexts = [case.context] * case.batch
    if case.is_ragged:
        contexts = [1 + (2 * case.context - 1) * index // max(1, case.batch - 1) for index in range(case.batch)]
    free = iter(torch.randperm(n_blocks).tolist())
    rows = [
        Row(token_ids=[0], n_before=context - 1, blocks=[next(free) for _ in range(-(-context // BLOCK_TOKENS))])
        for context in contexts
    ]
    widest = max(len(row.blocks) for row in rows)
    return compose(rows, block_tokens=BLOCK_TOKENS, max_blocks=widest, device=torch.device("cuda"))


def measure(case: Case, name: str, kernels: AttentionKernels, query: Tensor, kv: Tensor, step: StepInput) -> Measured:
    """Check and time one variant; a kernel that does not compile is a row as well."""
    us = error = float("nan")
    is_repeatable, fault = False, ""
    try:
        kernels.plan(step)
        attended = kernels.decode(query, kv, 0, step)
        error = relative_error(attended, query, kv, step)
        is_repeatable = torch.equal(attended, kernels.decode(query, kv, 0, step))
        us = us_per_layer(kernels, query, kv, step)
    except Exception as problem:  # whatever a compiler throws: the other variants are still worth measuring
        fault = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
    n_bytes = int(step.contexts.sum()) * 2 * kv[0, 0, 0, 0].numel() * kv.itemsize
    measured = Measured(
        **asdict(case),
        variant=name,
        us_per_layer=round(us, 2),
        gb_per_s=round(n_bytes / us / 1e3, 1),
        relative_error=error,
        is_repeatable=is_repeatable,
        fault=fault,
        device=torch.cuda.get_device_name(),
        torch_version=torch.__version__,
    )
    print(line(measured), flush=True)
    return measured


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


def us_per_layer(kernels: AttentionKernels, query: Tensor, kv: Tensor, step: StepInput) -> float:
    """Median time of one layer in a graph that runs every layer once, in microseconds."""
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
    return statistics.median(times[3:])


def best(rows: Sequence[Measured], n_finalists: int) -> list[str]:
    """Name the fastest variants of each tuning case."""
    finalists: list[str] = []
    for case in TUNED_CASES:
        own = [row for row in rows if case_of(row) == case and not row.fault and row.variant != "flashinfer"]
        own.sort(key=lambda row: row.us_per_layer)
        finalists += [row.variant for row in own[:n_finalists]]
    return list(dict.fromkeys(finalists))


def with_all_programs(names: Sequence[str]) -> list[str]:
    """Name the same tilings with the other numbers of programs."""
    return [re.sub(r"-p\d+$", f"-p{n}", name) for name in names for n in N_PROGRAMS[1:]]


def case_of(row: Measured) -> Case:
    return Case(row.model, row.batch, row.context, row.is_ragged)


def save(rows: Sequence[Measured], out: Path) -> None:
    out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def line(row: Measured) -> str:
    kind = "ragged" if row.is_ragged else ""
    rate = row.gb_per_s * 1e9 / COPY_BYTES_PER_S
    start = f"{row.model:12} {row.batch:4} x {row.context:5} {kind:6} {row.variant:27}"
    if row.fault:
        return f"{start} {row.fault}"
    trust = f"error {row.relative_error:.1e}" + ("" if row.is_repeatable else ", NOT REPEATABLE")
    return f"{start} {row.us_per_layer:9.2f} us {row.gb_per_s:8.1f} GB/s {rate:6.1%}  {trust}"


def print_table(rows: Sequence[Measured]) -> None:
    """Print the three fastest variants of each case."""
    print("\nfastest of each case")
    for case in dict.fromkeys(map(case_of, rows)):
        own = [row for row in rows if case_of(row) == case and not row.fault]
        for row in sorted(own, key=lambda row: row.us_per_layer)[:3]:
            print(line(row))


if __name__ == "__main__":
    main()
