"""The simulated world: steps, copies and mappings as time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from policies.backend import Batch, Change, StepReport
from policies.memory.experts import Offload, Reload
from policies.memory.layout import home_pages
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Op, Withdraw
from policies.types import NS_PER_S, HardwareProfile, ModelShape, Work, one_token_later
from sim.compute.base import ComputeModel
from sim.host_kv import HostKvCost
from sim.link import Copy, Link
from sim.pipeline import Pipeline
from sim.vmm import VmmCost, VmmMode
from traces.results.copies import CopyKind, CopyLog


@dataclass(slots=True)
class _Landing:
    copy: Copy
    model: int
    layer: int


class SimBackend:
    """Carries out what the loop asks for as durations on one GPU.

    Args:
        shapes: the models, by lane.
        hardware: the machine.
        computes: compute times of each model on it.
        vmm: what changing a mapping costs.
        vmm_mode: how homes change hands.
        slowdown_ppm, copy_slowdown_ppm, prefill_slowdowns_ppm: see ``Link``.
        static_slots: see ``Pipeline``.
        copies: takes note of what crosses the link.

    Attributes:
        now_ns: the present of the simulation.
    """

    def __init__(
        self,
        shapes: Seq[ModelShape],
        hardware: HardwareProfile,
        computes: Seq[ComputeModel],
        *,
        vmm: VmmCost,
        vmm_mode: VmmMode = VmmMode.ALIAS,
        slowdown_ppm: int = 0,
        copy_slowdown_ppm: int = 0,
        prefill_slowdowns_ppm: tuple[int | None, int | None] = (None, None),
        static_slots: bool = False,
        copies: CopyLog | None = None,
    ) -> None:
        self._shapes = shapes
        self._hardware = hardware
        self._computes = computes
        self._vmm = vmm
        self._vmm_mode = vmm_mode
        self.now_ns = 0
        self._link = Link(hardware.link, slowdown_ppm, copy_slowdown_ppm, prefill_slowdowns_ppm)
        self._copies = copies
        self._pipelines = [
            Pipeline(
                [shape.layer_bytes] * shape.n_layers,
                self._link,
                static_slots=static_slots,
                told=None if copies is None else partial(self._note_fetch, copies, lane),
            )
            for lane, shape in enumerate(shapes)
        ]
        self._on_host = [HostKvCost(shape, hardware) for shape in shapes]
        self._landings: list[_Landing] = []
        self._ends: list[tuple[int, int, StepReport]] = []  # a heap: (end, order of being started, what ends)
        self._n_started = 0
        self._busy: dict[int, int] = {}  # lane: steps under way
        self._behind_ns: dict[int, int] = {}  # lane: their end
        self._remap_ns = 0
        self._fence_ns = 0

    def apply(self, change: Change) -> None:
        """Carry out the ops: cycles change at once, loads go onto the link, mappings delay the next step."""
        for op in change.ops:
            self._carry_out(op)

    def _carry_out(self, op: Op) -> None:
        match op:
            case Withdraw(lender, _, _):
                self._remap(lender)
            case Lend(lender, home, _):
                self._remap(lender)
                self._fence_ns = max(self._fence_ns, self._pipelines[lender].quiet_ns(home))
            case Cycle(model, cycling, slots):
                self._pipelines[model].set_cycle(cycling, slots, self.now_ns)
            case Load(model, layer, home):
                copy = self._pipelines[model].load(layer, home, self.now_ns)
                self._landings.append(_Landing(copy, model, layer))
            case HoldOnHost(model, _, after):
                self._on_host[model].held = after
            case Offload() | Reload():
                raise ValueError(f"model {op.model} has no experts here")
            case MoveBlocks(_, moves, block_bytes):
                read_and_written = 2 * block_bytes * len(moves)
                self._remap_ns += -(-read_and_written * NS_PER_S // self._hardware.hbm_bytes_per_s)

    def _remap(self, lender: int) -> None:
        self._remap_ns += self._vmm.remap_ns(self._vmm_mode, 1, home_pages(self._shapes[lender], self._hardware))

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Work out when the steps end.

        A step waits for changed mappings and for its swapped KV, then for the host, then
        computes. A submission also stops at the first step during which a load lands.
        """
        if lane in self._busy and self._busy[lane] > n_ahead:
            raise ValueError(f"lane {lane} is busy; take its report first")
        if n_steps > 1 and batch.work.n_prefill_tokens:
            raise ValueError(f"lane {lane}: a batch with prefill tokens cannot repeat")
        for landing in self._landings:
            stop_ns = min(stop_ns, landing.copy.end_ns)
        if n_ahead:
            self._submit_ahead(lane, batch, n_steps, stop_ns)
            return
        host_ns = self._computes[lane].host_ns(batch.work)
        self._busy[lane] = self._start(lane, batch, n_steps, self.now_ns, stop_ns, host_ns)

    def _submit_ahead(self, lane: int, batch: Batch, n_steps: int, stop_ns: int) -> None:
        """Start behind what is under way; the host has prepared that meanwhile.

        Of several steps the last is launched before it is known that the one before it ends at ``stop_ns``.
        """
        n_before = self._busy.get(lane, 0)
        start_ns = self._behind_ns[lane] if n_before else self.now_ns
        host_ns = 0 if n_before else self._computes[lane].host_ns(batch.work)
        n_ran = self._start(lane, batch, max(1, n_steps - 1), start_ns, stop_ns, host_ns)
        if n_steps > 1 and start_ns < stop_ns:
            last = Batch(one_token_later(batch.work, n_ran), decodes=batch.decodes)
            n_ran += self._start(lane, last, 1, self._behind_ns[lane], stop_ns, 0)
        self._busy[lane] = n_before + n_ran

    def _start(self, lane: int, batch: Batch, n_steps: int, start_ns: int, stop_ns: int, host_ns: int) -> int:
        """Run steps from then on, and wait for the last; how many there are."""
        mapped_ns = start_ns
        if self._remap_ns or self._fence_ns > start_ns:
            mapped_ns = max(start_ns, self._fence_ns) + self._remap_ns
            self._remap_ns = 0
        ready_ns = mapped_ns
        if batch.swap_out_bytes or batch.swap_in_bytes:
            ready_ns = self._swap(lane, batch, mapped_ns)
        ran = self._steps(lane, batch.work, n_steps, ready_ns, stop_ns, host_ns)
        report = StepReport(lane, start_ns, *ran, ready_ns - mapped_ns, mapped_ns - start_ns)
        end_ns = self._behind_ns[lane] = report.ends_ns[-1]
        heappush(self._ends, (end_ns, self._n_started, report))
        self._n_started += 1
        return len(report.ends_ns)

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Go to the end of the next submission, else to ``until_ns`` exactly."""
        ends = self._ends
        if not ends and until_ns is None:
            raise ValueError("nothing is in flight; name a time to advance to")
        if ends and (until_ns is None or ends[0][0] <= until_ns):
            self.now_ns, _, report = heappop(ends)
            n_left = self._busy.pop(report.lane) - len(report.ends_ns)
            if n_left:
                self._busy[report.lane] = n_left
                report.n_under_way = min(2, n_left)
            return report
        assert until_ns is not None
        if until_ns > self.now_ns:
            self.now_ns = until_ns
        return None

    def landed(self) -> tuple[tuple[int, int], ...]:
        """Loads that are complete and were not told before."""
        if not self._landings:
            return ()
        done = [landing for landing in self._landings if landing.copy.end_ns <= self.now_ns]
        self._landings = [landing for landing in self._landings if landing.copy.end_ns > self.now_ns]
        done.sort(key=lambda landing: landing.copy.end_ns)
        return tuple((landing.model, landing.layer) for landing in done)

    def _swap(self, lane: int, batch: Batch, at_ns: int) -> int:
        """Put swapped KV on the link; when it has crossed. vLLM 0.7.3 swaps before it computes."""
        copies: list[Copy] = []
        for n_bytes, way, kind in (
            (batch.swap_out_bytes, self._link.d2h, CopyKind.SWAP_OUT),
            (batch.swap_in_bytes, self._link.h2d, CopyKind.SWAP_IN),
        ):
            if n_bytes:
                copies.append(way(n_bytes, at_ns))
                if self._copies is not None:
                    self._copies.note(lane, kind, None, None, n_bytes, at_ns, copies[-1])
        return max([at_ns, *(copy.end_ns for copy in copies)])  # both requested: one may postpone the other

    def _note_fetch(self, copies: CopyLog, lane: int, layer: int, home: int, at_ns: int, copy: Copy) -> None:
        copies.note(lane, CopyKind.FETCH, layer, home, self._shapes[lane].layer_bytes, at_ns, copy)

    def _steps(
        self, lane: int, work: Work, n_steps: int, start_ns: int, stop_ns: int, host_ns: int
    ) -> tuple[list[int], list[int] | None, list[int], list[int]]:
        """Ends, device times of the layers, stalls and rests of the steps, as far as ``stop_ns``."""
        compute, pipeline, n_layers = self._computes[lane], self._pipelines[lane], self._shapes[lane].n_layers
        head_ns = compute.head_ns(work)
        rest_ns = host_ns + head_ns
        if n_steps > 1:  # later steps are no shorter than the first, so more cannot begin before stop_ns
            first_ns = n_layers * compute.layer_ns(work) + rest_ns
            n_begun = max(0, stop_ns - start_ns) // (first_ns or 1) + 1
            if n_begun < n_steps:
                n_steps = n_begun
        self._link.compute(is_prefill=work.n_prefill_tokens > 0)
        on_host = self._on_host[lane]
        if on_host.held is not None and work.n_decode_seqs:
            return on_host.steps(pipeline, compute, work, n_steps, start_ns, stop_ns, host_ns)
        if pipeline.is_undisturbed:
            ends_ns = compute.repeated_ends_ns(work, n_steps, start_ns, n_layers, rest_ns, stop_ns)
            return ends_ns, None, [0] * len(ends_ns), [rest_ns] * len(ends_ns)
        layers_ns = compute.repeated_layer_ns(work, n_steps)
        ends_ns, compute_ns, stalls_ns = pipeline.steps(start_ns, layers_ns, host_ns, head_ns, stop_ns)
        return ends_ns, compute_ns, stalls_ns, [rest_ns] * len(ends_ns)
