# pyright: basic
# (torch leaves parts of its interface untyped)
"""Hold decode steps with staged experts against the recurrence that the simulator plays, on a GPU.

Run: python -m bench.staging --out staging.json          Qwen3-30B-A3B at true shape; --rows 16 64 --fractions 0.1

The recurrence (``sim/staging.py``) is given what was measured with every expert at home: the time of each layer's
two pieces, without and with a wait for what is there between them, of what lies between two steps, and by which share
steps last longer while regions are copied without a break; and the rate of copies of a region alone. A step is then
run with experts offloaded, one behind the other as a server runs them, and must take as long as predicted. The
residual stream must have the bits that it had with every expert at home.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from time import perf_counter

import torch
import yaml

from bench.experts import MODELS
from bench.machine import gpu, machine, write
from executor.clock import HostClock
from executor.mixture.plan import plan_moe
from executor.mixture.serving import open_moe_serving
from executor.models.step import Row
from executor.vmm.cuda import CudaDriver
from policies.memory.experts import move_boundaries
from policies.moe import MoeShape
from policies.moe_setup import ServedMoe, open_moe
from policies.setup import Serving
from policies.types import GIB, HardwareProfile, LinkProfile
from policies.vamp import Vamp
from sim.compute.moe import LayerTimes
from sim.staging import StagedExperts, StagingLink

HARDWARE = Path(__file__).parents[1] / "conf" / "hardware"
ROWS = (16, 64, 256)
FRACTIONS = (0.02, 0.05, 0.1, 0.2)
CONTEXT = 512
N_STEPS = 12
N_FIRST = 3
"""Steps that are left out: the buffers are filled ahead by then."""

N_COPIES = 8
MARGIN = 1.5
"""Copies beside steps go on for longer than those take alone by this."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One batch with one share of the experts offloaded.

    Attributes:
        step_ms: from the start of a step to that of the next, median.
        error: of the prediction; positive: the device took longer.
        mixer_ms, experts_ms, between_ms: sums over the layers of a step with every expert at home, and the rest of it.
        waits_ms: what marks and waits for what is there add, all layers together.
        slowdown: share by which the step takes longer beside copies without a break.
        copy_gb_per_s: of a region alone.
        is_bitwise_equal: the residual stream of every row is as with every expert at home.
    """

    model: str
    n_rows: int
    context: int
    fraction: float
    n_increments: int
    offloaded_gib: float
    resident_ms: float
    step_ms: float
    predicted_ms: float
    error: float
    mixer_ms: float
    experts_ms: float
    between_ms: float
    waits_ms: float
    slowdown: float
    copy_gb_per_s: float
    is_bitwise_equal: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3_30b_a3b")
    parser.add_argument("--hardware", default="h200")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--vmm", default="alias", choices=["alias", "range"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = perf_counter()
    with Bench(arguments) as bench:
        print(f"loaded in {perf_counter() - began:.0f} s", flush=True)
        rows = [each for n_rows in arguments.rows for each in bench.measure(n_rows, arguments.fractions)]
    if arguments.out:
        write(arguments.out, machine(*gpu()), [asdict(row) for row in rows])
    worst = max(abs(row.error) for row in rows)
    print(f"worst error {worst:.1%}; same bits: {all(row.is_bitwise_equal for row in rows)}")


@dataclass(frozen=True, slots=True)
class Pieces:
    """Times of the pieces of every layer, whose experts are at home.

    Attributes:
        plain: with nothing between them.
        waiting: with marks and a wait for what is there between them, as where experts are staged.
        layers_ns: all of ``plain``.
    """

    plain: list[LayerTimes]
    waiting: list[LayerTimes]
    layers_ns: float


class Bench:
    """The model as it is served, and steps of decodes over scattered blocks."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.shape = MoeShape(**yaml.safe_load((MODELS / f"{arguments.model}.yaml").read_text()))
        hardware = _hardware(arguments.hardware)
        serving = Serving(
            scheduler="vllm_v1",
            max_num_seqs=max(arguments.rows),
            max_num_batched_tokens=2048,
            max_model_len=2 * CONTEXT,
            chunked_prefill=True,
            prefix_caching=True,
            async_scheduling=False,
        )
        self.policy = Vamp(max_offloaded_fraction=max(arguments.fractions), multiple_shards=2)
        served = ServedMoe(shape=self.shape, n_ranks=1, share=0.9, activation_bytes=3 * GIB)
        ledger, lane = open_moe(served, hardware, serving, self.policy)
        plan = plan_moe(served, ledger, lane, hardware, serving, vmm=arguments.vmm, weights={}, seed=0)
        self.driver = CudaDriver()
        self.serving = open_moe_serving(self.driver, plan, HostClock())
        self.layout, self.block_tokens = plan.extents.start.layout, plan.block_tokens
        blocks_each = -(-CONTEXT // self.block_tokens)
        n_blocks = max(arguments.rows) * blocks_each
        self.blocks = (1 + torch.randperm(n_blocks)).view(-1, blocks_each).tolist()
        self.serving.memory.kv_blocks()[: n_blocks + 1].normal_()
        torch.cuda.synchronize()
        self.rates = {each: self._copy_rate(each) for each in arguments.fractions}  # before the buffers are of use

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self.serving.close()
        self.driver.close()

    def measure(self, n_rows: int, fractions: Sequence[float]) -> list[Measured]:
        """Measure a batch with every expert at home, then with some offloaded."""
        rows = [
            Row(token_ids=[index], n_before=CONTEXT - 1, blocks=blocks)
            for index, blocks in enumerate(self.blocks[:n_rows])
        ]
        self._move_to(0)
        resident_ns = self._steps(rows)
        slowdown = max(0.0, self._steps(rows, beside_ns=resident_ns) / resident_ns - 1)
        expected = self._hidden(rows)
        pieces = self._pieces(rows)
        between_ns = max(0, resident_ns - pieces.layers_ns)
        measured: list[Measured] = []
        for fraction in fractions:
            rate = self.rates[fraction]
            self._move_to(self._n_increments(fraction))
            step_ns = self._steps(rows)
            predicted_ns = self._predict(pieces, between_ns, rate, slowdown)
            experts = self.serving.memory.experts
            measured.append(
                Measured(
                    model=self.shape.name,
                    n_rows=n_rows,
                    context=CONTEXT,
                    fraction=fraction,
                    n_increments=experts.n_increments,
                    offloaded_gib=round(experts.offloaded_bytes / GIB, 3),
                    resident_ms=round(resident_ns / 1e6, 3),
                    step_ms=round(step_ns / 1e6, 3),
                    predicted_ms=round(predicted_ns / 1e6, 3),
                    error=round(step_ns / predicted_ns - 1, 4),
                    mixer_ms=round(sum(each.mixer_ns for each in pieces.plain) / 1e6, 3),
                    experts_ms=round(sum(each.gate_up_ns for each in pieces.plain) / 1e6, 3),
                    between_ms=round(between_ns / 1e6, 3),
                    waits_ms=round(sum(each.all_ns for each in pieces.waiting) / 1e6 - pieces.layers_ns / 1e6, 3),
                    slowdown=round(slowdown, 4),
                    copy_gb_per_s=round(rate / 1e9, 2),
                    is_bitwise_equal=torch.equal(expected, self._hidden(rows)),
                )
            )
            print(measured[-1], flush=True)
        return measured

    def _n_increments(self, fraction: float) -> int:
        """Increments that offload this share of every eligible layer."""
        experts = self.serving.memory.experts
        n_groups = round(fraction * self.layout.n_experts) // self.layout.group_shards * self.layout.n_eligible_layers
        return min(experts.most_increments, max(1, n_groups // experts.cap.increment_groups))

    def _move_to(self, n_increments: int) -> None:
        ops, _ = move_boundaries(0, self.serving.memory.experts, n_increments)
        self.serving.mover.carry_out(ops)

    def _steps(self, rows: list[Row], *, beside_ns: float = 0) -> float:
        """Median time from the start of the layers of a step to that of the next.

        Args:
            rows: the step's sequences.
            beside_ns: how long a step lasts about, if regions are to be copied meanwhile without a break.
        """
        streams, n_steps = self.serving.streams, N_STEPS + N_FIRST + 1
        copies: list[object] = []
        if beside_ns:
            n_bytes = self.serving.memory.extents.region_bytes
            fetch_ns = n_bytes / max(self.rates.values()) * 1e9
            copies = self._copy(n_bytes, ceil(MARGIN * n_steps * beside_ns / fetch_ns))
        marks = [self.serving.forward.run(rows).layers[0] for _ in range(n_steps)]
        for mark in (streams.mark(), *copies[-1:]):
            streams.wait(mark)
        streams.take_stalls()
        return statistics.median(map(streams.between_ns, marks[N_FIRST:-1], marks[N_FIRST + 1 :]))

    def _copy(self, n_bytes: int, n: int) -> list[object]:
        """Copy so much of a region into the buffers in turn, n times; when each is done."""
        streams, memory = self.serving.streams, self.serving.memory
        start, source = streams.mark(), memory.masters(self.layout.n_layers - 1)[:n_bytes]
        return [streams.fetch(memory.buffers[nth % 2, :n_bytes], source, start) for nth in range(n)]

    def _hidden(self, rows: list[Row]) -> torch.Tensor:
        """The residual stream behind the last layer of a step."""
        streams = self.serving.streams
        hidden = self.serving.forward.run(rows).hidden
        streams.wait(streams.mark())
        streams.take_stalls()
        return hidden.clone()

    def _pieces(self, rows: list[Row]) -> Pieces:
        """Times of both pieces of every layer with every expert at home, as they are and with a wait between them."""
        alone_ns = statistics.median(self._layers_ns(rows))
        split = self._split(rows, waits=False)
        scale = alone_ns / sum(map(sum, split))  # marks between the pieces take time themselves
        return Pieces(
            plain=[_times(mixer * scale, experts * scale) for mixer, experts in split],
            waiting=[_times(mixer, experts) for mixer, experts in self._split(rows, waits=True)],
            layers_ns=alone_ns,
        )

    def _layers_ns(self, rows: list[Row]) -> list[int]:
        """Time of all layers of a step, some times."""
        streams = self.serving.streams
        times: list[int] = []
        for _ in range(N_STEPS):
            passed = self.serving.forward.run(rows)
            streams.wait(streams.mark())
            streams.take_stalls()
            times.append(streams.between_ns(*passed.layers))
        return times

    def _split(self, rows: list[Row], *, waits: bool) -> list[tuple[float, float]]:
        """Time of each layer's two pieces, from the marks around them; what is there is waited for if it ``waits``."""
        streams, staging = self.serving.streams, self.serving.staging
        marks: list[object] = []
        reached = streams.mark()
        streams.wait(reached)

        def enter(layer: int) -> None:
            leave(layer)
            if waits:
                streams.hold(reached)

        def leave(layer: int) -> None:
            del layer
            marks.append(streams.mark())

        samples: list[list[int]] = []
        staging.enter, staging.leave = enter, leave  # every expert is at home: there is nothing to wait for
        try:
            for _ in range(N_STEPS):
                marks.clear()
                first = self.serving.forward.run(rows).layers[0]
                streams.wait(streams.mark())
                streams.take_stalls()
                samples.append([streams.between_ns(*pair) for pair in zip([first, *marks], marks, strict=False)])
        finally:
            del staging.enter, staging.leave
        pieces = [statistics.median(each) for each in zip(*samples, strict=True)]
        return list(zip(pieces[::2], pieces[1::2], strict=True))

    def _copy_rate(self, fraction: float) -> float:
        """Bytes/s of copies of a region of this share, one behind the other, beside nothing."""
        streams, memory = self.serving.streams, self.serving.memory
        n_groups = max(1, round(fraction * self.layout.n_experts) // self.layout.group_shards)
        n_bytes = min(n_groups * self.layout.group_bytes, memory.extents.region_bytes)
        times: list[float] = []
        for _ in range(5):
            start = streams.mark()
            last = self._copy(n_bytes, N_COPIES)[-1]
            streams.hold(last)
            end = streams.mark()
            streams.wait(end)
            streams.take_stalls()
            times.append(N_COPIES * n_bytes / streams.between_ns(start, end) * 1e9)
        return statistics.median(times)

    def _predict(self, pieces: Pieces, between_ns: float, rate: float, slowdown: float) -> float:
        """What the recurrence says of a step."""
        link = StagingLink(bytes_per_s=round(rate), splits_regions=False, slowdown_ppm=round(slowdown * 1e6))
        staged = StagedExperts(0, self.layout.gate_up_bytes, self.layout.down_bytes, link)
        shards = self.serving.memory.experts.shards_by_layer
        staged.set_regions(shards)
        layers = [
            (waiting if n else plain) for n, plain, waiting in zip(shards, pieces.plain, pieces.waiting, strict=True)
        ]
        steps = [layers] * (N_STEPS + N_FIRST + 1)
        ends_ns, _ = staged.steps(0, steps, 0, round(between_ns), 2**62)
        return (ends_ns[-1] - ends_ns[N_FIRST]) / (len(ends_ns) - 1 - N_FIRST)


def _times(mixer_ns: float, experts_ns: float) -> LayerTimes:
    return LayerTimes(mixer_ns=round(mixer_ns), gate_up_ns=round(experts_ns), down_ns=0, reduce_ns=0)


def _hardware(name: str) -> HardwareProfile:
    values = yaml.safe_load((HARDWARE / f"{name}.yaml").read_text())
    link = {key: value for key, value in values["link"].items() if key.endswith("bytes_per_s")}
    fields = {key: values[key] for key in ("name", "hbm_bytes", "hbm_bytes_per_s", "page_bytes")}
    return HardwareProfile(link=LinkProfile(**link), **fields)


if __name__ == "__main__":
    main()
