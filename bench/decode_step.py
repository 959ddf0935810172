# pyright: basic
# (torch leaves parts of its interface untyped)
"""Time whole decode steps of a model on a GPU, layer by layer from CUDA graphs, beside the bound that bandwidth sets.

Run: python -m bench.decode_step --model opt_13b --batch 64 --context 1024 --out row.json
     python -m bench.decode_step --model opt_13b --profile         which kernels the time goes to

The bound is (weights + K and V of the contexts) / copy bandwidth. Weights are random, KV too. Each layer is
also run once from another place: the residual stream must have the same bits.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.attention import BLOCK_TOKENS, COPY_BYTES_PER_S, read_spec
from executor.attention.triton_paged import Tiling, TritonKernels
from executor.models.decode_buffers import DecodeBuffers, bucket_of
from executor.models.decoder import Decoder, build_decoder
from executor.models.graphs import DecodeGraphs
from executor.models.layout import new_region
from executor.models.random_weights import fill_layer, random_outer
from executor.models.step import Row

SEED = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """A decode step: its median time, its bound, and whether a layer's place changed any bit."""

    model: str
    batch: int
    context: int
    step_ms: float
    slowest_ms: float
    bound_ms: float
    ratio: float
    fill_ms: float
    n_graphs: int
    is_bitwise_equal_from_elsewhere: bool
    device: str
    torch_version: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="opt_13b")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024, help="tokens of each sequence, the new one included")
    parser.add_argument("--tiling", help="a variant of bench.attention; the default is what a server would take")
    parser.add_argument("--n-steps", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.batch, arguments.context, arguments.tiling)
    measured = bench.measure(arguments.n_steps)
    if arguments.profile:
        bench.profile()
    if arguments.out:
        arguments.out.write_text(json.dumps(asdict(measured), indent=1) + "\n")
    print(
        f"{measured.model} {measured.batch} x {measured.context}: {measured.step_ms:.2f} ms a step, bound "
        f"{measured.bound_ms:.2f} ms, ratio {measured.ratio:.3f}; same bits from another place: "
        f"{measured.is_bitwise_equal_from_elsewhere}"
    )


class Bench:
    """A model with random weights, a KV range, and one decode batch whose blocks are scattered over it."""

    def __init__(self, model: str, batch: int, context: int, tiling: str | None) -> None:
        self.model, self.batch, self.context = model, batch, context
        self.bucket = bucket_of(batch)
        spec, device = read_spec(model), torch.device("cuda:0")
        kernels = TritonKernels(Tiling.named(tiling) if tiling else None)
        self.decoder: Decoder = build_decoder(spec, random_outer(spec, SEED, device), kernels)
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
        """Time steps on the device, and filling on the host's side as well."""
        times: list[float] = []
        fills: list[float] = []
        self.fill()
        for _ in range(n_steps + 3):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record(self.stream)
            self.fill()
            marks[1].record(self.stream)
            self.step(self.regions)
            marks[2].record(self.stream)
            marks[2].synchronize()
            fills.append(marks[0].elapsed_time(marks[1]))
            times.append(marks[1].elapsed_time(marks[2]))
        bound_ms = self.bound_ms()
        step_ms = statistics.median(times[3:])
        return Measured(
            model=self.model,
            batch=self.batch,
            context=self.context,
            step_ms=round(step_ms, 3),
            slowest_ms=round(max(times[3:]), 3),
            bound_ms=round(bound_ms, 3),
            ratio=round(step_ms / bound_ms, 4),
            fill_ms=round(statistics.median(fills[3:]), 3),
            n_graphs=self.graphs.n_graphs,
            is_bitwise_equal_from_elsewhere=self.is_equal_from_elsewhere(),
            device=torch.cuda.get_device_name(),
            torch_version=torch.__version__,
        )

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

    def profile(self) -> None:
        """Print where the time of one step goes, kernel by kernel."""
        self.fill()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.step(self.regions)
            self.stream.synchronize()
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=20, max_name_column_width=60))


if __name__ == "__main__":
    main()
