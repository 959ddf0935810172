# pyright: basic
# (torch leaves parts of its interface untyped)
"""Time whole decode steps of a model on a GPU, layer by layer from CUDA graphs, beside the bound that bandwidth sets.

Run: python -m bench.decode_step --model opt_13b --batch 64 --context 1024 --out decode_step.json

The bound is (weights + K and V of the contexts) / copy bandwidth. Weights are random, KV too. The step is also
run with two layers from another place: the residual stream must have the same bits. What the cut into graphs
costs is the difference to one graph of the whole step; what kernels the rest goes to, a profiler says.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from bench.attention import BLOCK_TOKENS, COPY_BYTES_PER_S, read_spec
from bench.machine import gpu, machine, write
from executor.attention.choose import kernels_for
from executor.models.decode_buffers import DecodeBuffers, bucket_of
from executor.models.decoder import Decoder, build_decoder, greedy
from executor.models.graphs import DecodeGraphs
from executor.models.layout import new_region
from executor.models.random_weights import fill_layer, random_outer
from executor.models.step import Row

SEED = 0

PARTS = {
    "attention": r"attend_to_splits|merge_splits",
    "store": r"store_heads",
    "norms": r"layer_?norm|rms_?norm",
    "gemms": r"gemm|nvjet|cutlass|splitk|cublas",
}
"""Kernels by what is in their names, in this order; whatever else there is adds, multiplies, copies or samples."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A decode step.

    Attributes:
        step_ms, slowest_ms: time on the device, median and longest.
        ratio: of the median to the bound.
        one_graph_ms: the same step as a single graph.
        parts_ms: sums of the kernels' own times.
        fill_us, launch_us: what the host takes to fill the buffers and to ask for the graphs.
    """

    model: str
    batch: int
    context: int
    step_ms: float
    slowest_ms: float
    bound_ms: float
    ratio: float
    one_graph_ms: float
    parts_ms: dict[str, float]
    fill_us: float
    launch_us: float
    n_graphs: int
    is_bitwise_equal_from_elsewhere: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="opt_13b")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="tokens of each sequence, the new one included")
    parser.add_argument("--n-steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    measured = Bench(arguments.model, arguments.batch, arguments.context).measure(arguments.n_steps)
    if arguments.out:
        write(arguments.out, machine(*gpu()), [asdict(measured)])
    print(
        f"{measured.model} {measured.batch} x {measured.context}: {measured.step_ms:.2f} ms a step, bound "
        f"{measured.bound_ms:.2f} ms, ratio {measured.ratio:.3f}; same bits from another place: "
        f"{measured.is_bitwise_equal_from_elsewhere}\n"
        f"one graph {measured.one_graph_ms:.2f} ms; kernels in ms: {measured.parts_ms}\n"
        f"the host takes {measured.fill_us:.0f} us to fill and {measured.launch_us:.0f} us to launch"
    )


class Bench:
    """A model with random weights, a KV range, and one decode batch whose blocks are scattered over it."""

    def __init__(self, model: str, batch: int, context: int) -> None:
        self.model, self.batch, self.context = model, batch, context
        self.bucket = bucket_of(batch)
        spec, device = read_spec(model), torch.device("cuda:0")
        self.decoder: Decoder = build_decoder(spec, random_outer(spec, SEED, device), kernels_for(device))
        self.regions = [new_region(self.decoder.layout.n_bytes, device) for _ in range(spec.shape.n_layers)]
        for layer, region in enumerate(self.regions):
            fill_layer(self.decoder.layout, region, SEED, layer)

        blocks_each = -(-context // BLOCK_TOKENS)
        shape = spec.kv_shape(batch * blocks_each, BLOCK_TOKENS)
        self.kv = torch.empty(shape, dtype=spec.dtype, device=device).normal_()
        order = torch.randperm(batch * blocks_each).view(batch, blocks_each).tolist()
        self.rows = [Row(token_ids=[index], n_before=context - 1, blocks=blocks) for index, blocks in enumerate(order)]
        self.buffers = DecodeBuffers(self.bucket, blocks_each, BLOCK_TOKENS, device)
        self.stream = torch.cuda.Stream()
        self.graphs = DecodeGraphs(self.decoder, self.buffers, self.kv, self.bucket, self.stream)
        self.graphs.warm_up(self.bucket, self.regions[0])

    def step(self, regions: list[Tensor]) -> None:
        self.graphs.embed(self.bucket)
        for layer, region in enumerate(regions):
            self.graphs.layer(self.bucket, layer, region)
        self.graphs.head(self.bucket)

    def fill(self) -> None:
        with torch.cuda.stream(self.stream):
            self.buffers.fill(self.rows, self.bucket)

    def measure(self, n_steps: int) -> Measured:
        """Measure everything."""
        self.fill()
        self.step(self.regions)
        steps_ms, fills_us, launches_us = zip(*(self.timed_step() for _ in range(n_steps + 3)), strict=True)
        step_ms, bound_ms = statistics.median(steps_ms[3:]), self.bound_ms()
        return Measured(
            model=self.model,
            batch=self.batch,
            context=self.context,
            step_ms=round(step_ms, 3),
            slowest_ms=round(max(steps_ms[3:]), 3),
            bound_ms=round(bound_ms, 3),
            ratio=round(step_ms / bound_ms, 4),
            one_graph_ms=round(self.one_graph_ms(n_steps), 3),
            parts_ms=self.parts_ms(),
            fill_us=round(statistics.median(fills_us[3:]), 1),
            launch_us=round(statistics.median(launches_us[3:]), 1),
            n_graphs=self.graphs.n_graphs,
            is_bitwise_equal_from_elsewhere=self.is_equal_from_elsewhere(),
        )

    def timed_step(self) -> tuple[float, float, float]:
        """Time one step on the device, in ms, and what the host does for it, in us."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = perf_counter()
        self.fill()
        filled = perf_counter()
        start.record(self.stream)
        self.step(self.regions)
        end.record(self.stream)
        launched = perf_counter()
        end.synchronize()
        return start.elapsed_time(end), (filled - began) * 1e6, (launched - filled) * 1e6

    @torch.inference_mode()
    def one_graph_ms(self, n_steps: int) -> float:
        """Median time of the same step as a single graph."""
        step, graph = self.buffers.step(self.bucket), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            hidden = self.decoder.embed(step)
            for layer, region in enumerate(self.regions):
                self.decoder.run_layer(self.decoder.layer(region), layer, hidden, self.kv, step)
            greedy(self.decoder.logits(hidden, step))
        times: list[float] = []
        with torch.cuda.stream(self.stream):
            for _ in range(n_steps + 3):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end))
        return statistics.median(times[3:])

    def parts_ms(self) -> dict[str, float]:
        """Add up the kernels of one step by what they are."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.step(self.regions)
            self.stream.synchronize()
        parts: Counter[str] = Counter()
        for kernel in profiler.key_averages():
            part = next((part for part, names in PARTS.items() if re.search(names, kernel.key, re.I)), "others")
            parts[part] += kernel.self_device_time_total
        return {part: round(us / 1e3, 3) for part, us in parts.items()}

    def bound_ms(self) -> float:
        """Time to read every weight and the batch's K and V once."""
        shape = self.decoder.spec.shape
        n_bytes = shape.total_bytes + self.batch * self.context * shape.kv_bytes_per_token
        return n_bytes / COPY_BYTES_PER_S * 1e3

    def is_equal_from_elsewhere(self) -> bool:
        """Run the step with two layers moved into one other region, the second once the first is done."""
        self.fill()
        self.step(self.regions)
        self.stream.synchronize()
        expected = self.graphs.hidden.clone()
        slot = new_region(self.decoder.layout.n_bytes, self.kv.device)
        self.fill()
        self.graphs.embed(self.bucket)
        for layer, home in enumerate(self.regions):
            is_moved = layer in (0, len(self.regions) - 1)
            if is_moved:
                with torch.cuda.stream(self.stream):
                    slot.copy_(home)
            self.graphs.layer(self.bucket, layer, slot if is_moved else home)
        self.stream.synchronize()
        return torch.equal(self.graphs.hidden, expected)


if __name__ == "__main__":
    main()
