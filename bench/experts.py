# pyright: basic
# (torch and triton leave parts of their interfaces untyped)
"""Measure the grouped GEMMs of a layer's experts on a GPU: Triton's tilings beside PyTorch's own grouped_mm.

Run: python -m bench.experts --out experts.json          on Qwen3-30B-A3B; --model mixtral_8x7b, --rows 32 64

A case is one step's rows through the experts of several layers, as a CUDA graph, each layer with weights of its
own so that none is found in a cache. The bound is the weights of the experts that are in use over the copy
bandwidth. ``grouped_mm`` wants a layer's experts side by side and rows in order, so it is given both: gathering
rows is counted, finding experts elsewhere is not possible.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor
from torch.nn import functional

from bench.attention import COPY_BYTES_PER_S
from bench.machine import gpu, machine, write
from executor.experts.packs import ExpertTable, PackLayout, table_of
from executor.experts.triton_grouped import FEW_ROWS, MANY_ROWS, Tiling, TritonExperts, tiling_for
from executor.models.layout import new_region
from executor.models.moe import Routed
from executor.models.spec import moe_spec_of
from policies.moe import MoeShape

MODELS = Path(__file__).parents[1] / "conf" / "model" / "moe"
PAGE_BYTES = 2 * 2**20
GROUPED_MM: Callable[..., Tensor] = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm")  # noqa: B009
"""PyTorch's own; under another name before 2.10."""
N_LAYERS = 6
ROWS = (1, 8, 32, 64, 128, 256, 1024, 4096)
N_REPEATS = 20

TILINGS = (
    FEW_ROWS,
    MANY_ROWS,
    Tiling(rows=16, columns=32, depth=128, n_warps=4, n_stages=4),
    Tiling(rows=16, columns=64, depth=64, n_warps=4, n_stages=4),
    Tiling(rows=16, columns=128, depth=64, n_warps=4, n_stages=4),
    Tiling(rows=16, columns=128, depth=128, n_warps=8, n_stages=2),
    Tiling(rows=32, columns=64, depth=128, n_warps=4, n_stages=2),
    Tiling(rows=64, columns=128, depth=64, n_warps=8, n_stages=3),
    Tiling(rows=128, columns=64, depth=64, n_warps=8, n_stages=3),
    Tiling(rows=128, columns=128, depth=32, n_warps=8, n_stages=3),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One number of rows.

    Attributes:
        n_experts_used: of a layer, on average.
        bound_us: time to read their weights once, a layer.
        chosen: the tiling that a server would take.
        us_per_layer: by candidate, ``None`` where it failed.
        n_different: results of the chosen tiling, run again with experts elsewhere, that differ in a bit.
        relative_error: of the chosen tiling against ``grouped_mm``, of the norm.
    """

    model: str
    n_rows: int
    n_experts_used: float
    bound_us: float
    chosen: str
    us_per_layer: dict[str, float | None]
    n_different: int
    relative_error: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3_30b_a3b")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    bench = Bench(arguments.model)
    rows: list[Measured] = []
    for n_rows in arguments.rows:
        rows.append(bench.measure(n_rows))
        told = {name: us and round(us, 1) for name, us in rows[-1].us_per_layer.items()}
        print(
            f"{n_rows} rows, {rows[-1].n_experts_used:.0f} experts, bound {rows[-1].bound_us:.1f} us: {told}",
            flush=True,
        )
    if arguments.out:
        write(arguments.out, machine(*gpu()), [asdict(row) for row in rows])


class Bench:
    """The experts of several layers side by side, and a second place for those of the first."""

    def __init__(self, model: str) -> None:
        torch.manual_seed(0)
        shape = MoeShape(**yaml.safe_load((MODELS / f"{model}.yaml").read_text()))
        spec = moe_spec_of(shape, torch.bfloat16)
        assert spec.experts is not None
        self.model, self.hidden, self.spec, self.device = model, shape.hidden, spec.experts, torch.device("cuda:0")
        self.pack = PackLayout(
            n_experts=shape.n_experts,
            hidden=shape.hidden,
            ffn=spec.experts.ffn,
            dtype=spec.dtype,
            page_bytes=PAGE_BYTES,
        )
        self.packs = [new_region(self.pack.n_bytes, self.device) for _ in range(N_LAYERS)]
        for pack in self.packs:
            self.pack.gate_up(pack).normal_(0, 0.02)
            self.pack.down(pack).normal_(0, 0.02)
        self.tables = [table_of(self.pack, [pack]) for pack in self.packs]

    def measure(self, n_rows: int) -> Measured:
        """Time every candidate on rows that are routed at random."""
        router = torch.randn(self.spec.n_experts, self.hidden, dtype=self.pack.dtype, device=self.device)
        normed = torch.randn(n_rows, self.hidden, dtype=self.pack.dtype, device=self.device)
        routed = [
            TritonExperts().route(normed, functional.linear(normed, router.roll(layer, 1)), self.spec)
            for layer in range(N_LAYERS)
        ]
        n_used = statistics.fmean(int((each.starts.diff() > 0).sum()) for each in routed)
        chosen = tiling_for(n_rows * self.spec.n_active, self.spec.n_experts)
        times: dict[str, float | None] = {}
        for tiling in TILINGS:
            kernels = TritonExperts(tiling)
            times[str(tiling)] = self._time(
                n_rows, routed, lambda h, r, n, k=kernels: k.run(h, r, self.tables[n], self.spec)
            )
        times["grouped_mm"] = self._time(n_rows, routed, self._grouped_mm)
        return Measured(
            model=self.model,
            n_rows=n_rows,
            n_experts_used=n_used,
            bound_us=n_used * 3 * self.pack.down_bytes / COPY_BYTES_PER_S * 1e6,
            chosen=str(chosen),
            us_per_layer=times,
            n_different=self._n_different(n_rows, routed[0], TritonExperts(chosen)),
            relative_error=self._error(n_rows, routed[0], TritonExperts(chosen)),
        )

    def _grouped_mm(self, hidden: Tensor, routed: Routed, layer: int) -> None:
        """The same by PyTorch: gather, two grouped GEMMs, scatter."""
        ends = routed.starts[1:].to(torch.int32)
        rows = routed.normed[routed.order // self.spec.n_active]
        gate_up, down = self.pack.gate_up(self.packs[layer]), self.pack.down(self.packs[layer])
        gate, up = GROUPED_MM(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, dim=1)
        said = GROUPED_MM(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
        placed = torch.empty_like(said)
        placed[routed.order] = said * routed.weights.flatten()[routed.order, None]
        hidden += placed.view(hidden.shape[0], self.spec.n_active, -1).sum(dim=1)

    def _time(self, n_rows: int, routed: Sequence[Routed], run: Callable[[Tensor, Routed, int], None]) -> float | None:
        """Median time of a layer, from a graph of all of them; ``None`` if the candidate fails."""
        hidden = torch.zeros(n_rows, self.hidden, dtype=self.pack.dtype, device=self.device)

        def all_layers() -> None:
            for layer, each in enumerate(routed):
                run(hidden, each, layer)

        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                all_layers()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                all_layers()
        except Exception as failure:  # a candidate may want more than the GPU has; the others are timed
            print(f"  failed: {str(failure).splitlines()[0]}")
            torch.cuda.synchronize()
            return None
        times: list[float] = []
        with torch.cuda.stream(stream):
            for _ in range(N_REPEATS):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) * 1e3 / len(routed))
        return statistics.median(times[3:])

    def _said(self, n_rows: int, routed: Routed, kernels: TritonExperts, table: ExpertTable) -> Tensor:
        hidden = torch.zeros(n_rows, self.hidden, dtype=self.pack.dtype, device=self.device)
        kernels.run(hidden, routed, table, self.spec)
        return hidden

    def _n_different(self, n_rows: int, routed: Routed, kernels: TritonExperts) -> int:
        """Numbers that change when the last quarter of the experts is read from a copy of the pack."""
        elsewhere = new_region(self.pack.n_bytes, self.device).copy_(self.packs[0])
        table = self.tables[0]
        moved = table_of(self.pack, [elsewhere]).offsets
        moved = moved + (elsewhere.data_ptr() - table.base.data_ptr()) // 16
        offsets = table.offsets.clone()
        first = 3 * self.spec.n_experts // 4
        offsets[:, first:] = moved[:, first:]
        before = self._said(n_rows, routed, kernels, table)
        return int((before != self._said(n_rows, routed, kernels, ExpertTable(table.base, offsets))).sum())

    def _error(self, n_rows: int, routed: Routed, kernels: TritonExperts) -> float | None:
        ours, theirs = self._said(n_rows, routed, kernels, self.tables[0]).float(), torch.zeros_like(routed.normed)
        try:
            self._grouped_mm(theirs, routed, 0)
        except RuntimeError:
            return None
        return float((ours - theirs.float()).norm() / theirs.float().norm())


if __name__ == "__main__":
    main()
