# pyright: basic
# (torch leaves parts of its interface untyped)
"""Time whole prefill steps on a GPU as a server runs them, and what the host and the device take for each.

Run: python -m bench.prefill --models opt_13b llama_3_8b --out prefill.json

Beside each step stands the sum of its matrix products alone, as a profiler sees them, and the ratio to it. Weights are
random. The last rows are chunks behind tokens that are in the cache, and a step that decodes as well. Every step is
run twice: the residual stream must have the same bits.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from bench.attention import BLOCK_TOKENS, read_spec
from bench.machine import gpu, machine, write
from executor.attention.choose import kernels_for
from executor.forward import Eager, Graphed
from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import build_decoder
from executor.models.graphs import DecodeGraphs, PrefillGraphs
from executor.models.layout import new_region
from executor.models.prefill_buffers import TOKEN_BUCKETS, PrefillBuffers, prefill_bucket_of
from executor.models.random_weights import fill_layer, random_outer
from executor.models.step import Row
from executor.transfer.cuda import CudaStreams
from executor.transfer.slots import Slots

SEED = 0
N_BLOCKS = 4096
N_WARM_UP = 3
PARTS = {
    "attention": r"attend_to|merge_splits",
    "store": r"store_heads",
    "norms": r"layer_?norm|rms_?norm",
    "gemms": r"gemm|nvjet|cutlass|splitk|cublas",
}
"""Kernels by what is in their names, in this order; whatever else there is adds, multiplies, copies or samples."""


@dataclass(frozen=True, slots=True)
class Case:
    """Equal prefills behind equal contexts, and decodes behind the same."""

    n_seqs: int
    n_new: int
    n_before: int = 0
    n_decodes: int = 0

    def __str__(self) -> str:
        behind = f" behind {self.n_before}" if self.n_before else ""
        return f"{self.n_seqs} x {self.n_new}{behind}" + (f" and {self.n_decodes} decodes" if self.n_decodes else "")


CASES = (
    *(Case(*size) for size in [(1, 24), (1, 200), (1, 900), (4, 24), (16, 24), (60, 30), (8, 250)]),
    Case(1, 200, n_before=500),
    Case(4, 200, n_before=500),
    Case(1, 200, n_before=500, n_decodes=32),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A prefill step.

    Attributes:
        bucket: rows that it is padded to and run as graphs, ``None`` if it is run kernel by kernel.
        step_ms, slowest_ms: from when the host begins to when the device has sampled, median and longest.
        device_ms: its layers by the device's clock; launches that come late are in it.
        host_ms: what the host takes to ask for it.
        kernels_ms, gemms_ms: sums of the kernels' own times, of all and of the matrix products.
        ratio: of ``step_ms`` to ``gemms_ms``.
    """

    model: str
    n_seqs: int
    n_new: int
    n_before: int
    n_decodes: int
    bucket: int | None
    step_ms: float
    slowest_ms: float
    device_ms: float
    host_ms: float
    kernels_ms: float
    gemms_ms: float
    ratio: float
    parts_ms: dict[str, float]
    has_same_bits_again: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["opt_13b", "llama_3_8b"])
    parser.add_argument("--n-steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    measured: list[Measured] = []
    for model in arguments.models:
        bench = Bench(model)
        for case in CASES:
            measured.append(bench.measure(case, arguments.n_steps))
            print(line(case, measured[-1]), flush=True)
        del bench
        gc.collect()
        torch.cuda.empty_cache()
    if arguments.out:
        write(arguments.out, machine(*gpu()), [asdict(each) for each in measured])


class Bench:
    """A model with random weights and the forward that a server would give it."""

    def __init__(self, model: str) -> None:
        self.model, spec, device = model, read_spec(model), torch.device("cuda:0")
        decoder = build_decoder(spec, random_outer(spec, SEED, device), kernels_for(device))
        regions = [new_region(decoder.layout.n_bytes, device) for _ in range(spec.shape.n_layers)]
        for layer, region in enumerate(regions):
            fill_layer(decoder.layout, region, SEED, layer)
        kv = torch.empty(spec.kv_shape(N_BLOCKS, BLOCK_TOKENS), dtype=spec.dtype, device=device).normal_()
        torch.cuda.synchronize()

        max_blocks = -(-spec.shape.max_context_tokens // BLOCK_TOKENS)
        self.streams = CudaStreams(device)
        slots = Slots(regions, {}, self.streams)
        eager = Eager(decoder, regions, kv, slots, self.streams, max_blocks)
        decode_buffers = DecodeBuffers(1, max_blocks, BLOCK_TOKENS, device)
        decodes = DecodeGraphs(decoder, decode_buffers, kv, 1, self.streams.compute)
        buffers = PrefillBuffers(max_blocks, BLOCK_TOKENS, device)
        prefills = PrefillGraphs(decoder, buffers, kv, self.streams.compute)
        began, free_bytes = perf_counter(), torch.cuda.mem_get_info()[0]
        for bucket in TOKEN_BUCKETS:
            prefills.warm_up(bucket, regions)
        torch.cuda.synchronize()
        used_bytes = free_bytes - torch.cuda.mem_get_info()[0]
        print(f"{model}: graphs captured in {perf_counter() - began:.1f} s, {used_bytes / 2**20:.0f} MiB", flush=True)
        self.forward = Graphed(eager, (decodes, decode_buffers), (prefills, buffers), regions, slots, self.streams)
        self.blocks: list[int] = torch.randperm(N_BLOCKS).tolist()
        self.vocab = spec.shape.vocab

    def rows(self, case: Case) -> list[Row]:
        """Put the sequences of a case onto scattered blocks."""
        rows: list[Row] = []
        first = 0
        for n_new in [case.n_new] * case.n_seqs + [1] * case.n_decodes:
            n_blocks = -(-(case.n_before + n_new) // BLOCK_TOKENS)
            token_ids = [(first + token) % self.vocab for token in range(n_new)]
            rows.append(Row(token_ids=token_ids, n_before=case.n_before, blocks=self.blocks[first : first + n_blocks]))
            first += n_blocks
        return rows

    def measure(self, case: Case, n_steps: int) -> Measured:
        """Measure everything of a case."""
        rows = self.rows(case)
        times = [self.timed_step(rows) for _ in range(N_WARM_UP + n_steps)][N_WARM_UP:]
        steps_ms, devices_ms, hosts_ms = zip(*times, strict=True)
        parts_ms, step_ms = self.parts_ms(rows), statistics.median(steps_ms)
        first, again = (self.hidden(rows) for _ in range(2))
        gemms_ms = parts_ms["gemms"]
        return Measured(
            model=self.model,
            **asdict(case),
            bucket=prefill_bucket_of(rows),
            step_ms=round(step_ms, 3),
            slowest_ms=round(max(steps_ms), 3),
            device_ms=round(statistics.median(devices_ms), 3),
            host_ms=round(statistics.median(hosts_ms), 3),
            kernels_ms=round(sum(parts_ms.values()), 3),
            gemms_ms=gemms_ms,
            ratio=round(step_ms / gemms_ms, 3) if gemms_ms else float("nan"),
            parts_ms=parts_ms,
            has_same_bits_again=torch.equal(first, again),
        )

    def timed_step(self, rows: Sequence[Row]) -> tuple[float, float, float]:
        """Time one step: all of it, its layers on the device, and the host's part, in ms."""
        began = perf_counter()
        passed = self.forward.run(rows)
        asked = perf_counter()
        self.streams.compute.synchronize()
        ended = perf_counter()
        return (ended - began) * 1e3, self.streams.between_ns(*passed.layers) / 1e6, (asked - began) * 1e3

    def parts_ms(self, rows: Sequence[Row]) -> dict[str, float]:
        """Add up the kernels of one step by what they are."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.forward.run(rows)
            self.streams.compute.synchronize()
        parts: Counter[str] = Counter()
        for kernel in profiler.key_averages():
            part = next((part for part, names in PARTS.items() if re.search(names, kernel.key, re.I)), "others")
            parts[part] += kernel.self_device_time_total
        return {part: round(parts[part] / 1e3, 3) for part in (*PARTS, "others")}

    def hidden(self, rows: Sequence[Row]) -> torch.Tensor:
        """The residual stream behind the last layer."""
        passed = self.forward.run(rows)
        self.streams.compute.synchronize()
        return passed.hidden.clone()


def line(case: Case, row: Measured) -> str:
    way = f"graphs of {row.bucket} rows" if row.bucket else "kernel by kernel"
    return (
        f"{row.model:12} {case!s:36} {way:20} {row.step_ms:8.2f} ms, device {row.device_ms:.2f}, "
        f"host {row.host_ms:.2f}; GEMMs {row.gemms_ms:.2f}, ratio {row.ratio:.2f}; "
        f"same bits: {row.has_same_bits_again}; {row.parts_ms}"
    )


if __name__ == "__main__":
    main()
