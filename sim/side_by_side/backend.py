"""The simulated world in which several lanes are in flight at once, played from event to event.

Between two events every computation and every copy goes on at a constant rate; an event is the first of what is
waited for. When a step ends is not known when it is submitted: another lane that begins or ends changes it.

Ties: at one instant copies end first, then lanes go on in their order; of those that end their submissions the
reports are given in that order, too.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

from policies.backend import Batch, Change, StepReport
from policies.memory.experts import Offload, Reload
from policies.memory.layout import home_pages
from policies.memory.ops import Cycle, HoldOnHost, Lend, Load, MoveBlocks, Op, Withdraw
from policies.types import NS_PER_S, HardwareProfile, ModelShape
from sim.compute.base import ComputeModel
from sim.link import MILLION, Copy
from sim.side_by_side.device import ONE, Device
from sim.side_by_side.lane_run import DEVICE, MOMENT, NOTHING, Demand, LaneRun
from sim.side_by_side.slots import Slots
from sim.side_by_side.wires import D2H, H2D, Wires
from sim.vmm import VmmCost, VmmMode
from traces.results.copies import NEVER, CopyKind, CopyLog


@dataclass(frozen=True, slots=True)
class _Landing:
    copy: Copy
    model: int
    layer: int


class SideBySideBackend:
    """Carries out what the loop asks for as durations on one GPU that several models use at once.

    Args:
        shapes: the models, by lane.
        hardware: the machine.
        computes: compute times of each model, alone on what it may use of the machine.
        demands: what of that it keeps busy.
        device: how it is divided.
        vmm, vmm_mode, copies: see ``SimBackend``.
        slowdown_ppm: how much longer computation takes beside copies, of whichever lane.
        copy_slowdown_ppm: see ``Wires``.

    Attributes:
        now_ns: the present of the simulation.
    """

    def __init__(
        self,
        shapes: Seq[ModelShape],
        hardware: HardwareProfile,
        computes: Seq[ComputeModel],
        demands: Seq[Demand],
        device: Device,
        *,
        vmm: VmmCost,
        vmm_mode: VmmMode = VmmMode.ALIAS,
        slowdown_ppm: int = 0,
        copy_slowdown_ppm: int = 0,
        copies: CopyLog | None = None,
    ) -> None:
        self.now_ns = 0
        self._shapes = shapes
        self._hardware = hardware
        self._device = device
        self._vmm = vmm
        self._vmm_mode = vmm_mode
        self._alone = MILLION + slowdown_ppm  # progress of computation without a copy; beside one it is a million
        self._copies = copies
        self._wires = Wires(hardware.link, len(shapes), copy_slowdown_ppm)
        self._slots = [Slots(shape.n_layers, partial(self._fetch, lane)) for lane, shape in enumerate(shapes)]
        self._lanes = [
            LaneRun(lane, shape, computes[lane], demands[lane], self._slots[lane], self, ONE * self._alone)
            for lane, shape in enumerate(shapes)
        ]
        self._landings: list[_Landing] = []

    @property
    def is_copying(self) -> bool:
        """Whether anything is on the link."""
        return self._wires.is_busy

    def apply(self, change: Change) -> None:
        """Carry out the ops: cycles change at once, loads go onto the link, mappings delay the lane's next step."""
        for op in change.ops:
            self._carry_out(op)

    def _carry_out(self, op: Op) -> None:
        match op:
            case Withdraw(lender, _, _):
                self._remap(lender)
            case Lend(lender, home, _):
                self._remap(lender)
                copy = self._slots[lender].last_copy(home)
                if copy is not None:
                    self._lanes[lender].fence.append(copy)
            case Cycle(model, cycling, slots):
                self._slots[model].set_cycle(cycling, slots)
            case Load(model, layer, home):
                self._landings.append(_Landing(self._slots[model].load(layer, home), model, layer))
            case MoveBlocks(model, moves, block_bytes):
                read_and_written = 2 * block_bytes * len(moves)
                self._lanes[model].remap_ns += -(-read_and_written * NS_PER_S // self._hardware.hbm_bytes_per_s)
            case HoldOnHost() | Offload() | Reload():
                raise ValueError(f"model {op.model} runs beside others, which keeps neither KV cache nor experts away")

    def _remap(self, lender: int) -> None:
        pages = home_pages(self._shapes[lender], self._hardware)
        self._lanes[lender].remap_ns += self._vmm.remap_ns(self._vmm_mode, 1, pages)

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Begin; a step waits for changed mappings and for its swapped KV, then for the host, then computes.

        One that runs several times is alone until ``stop_ns``, and ends before a step that would end later.
        """
        run = self._lanes[lane]
        if n_ahead:
            raise ValueError(f"lane {lane}: nothing is launched ahead of steps that run beside others")
        if run.wait is not NOTHING or run.report is not None:
            raise ValueError(f"lane {lane} is busy; take its report first")
        if n_steps > 1 and batch.work.n_prefill_tokens:
            raise ValueError(f"lane {lane}: a batch with prefill tokens cannot repeat")
        run.submit(batch, 1 if self._landings else n_steps, stop_ns, partial(self._swap, lane, batch))

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Go to the end of the next submission, else to ``until_ns`` exactly."""
        while True:
            for run in self._lanes:
                if run.report is not None:
                    report, run.report = run.report, None
                    return report
            speeds, rates, next_ns = self._foresee()
            if next_ns == NEVER and until_ns is None:
                raise ValueError("nothing is in flight; name a time to advance to")
            if until_ns is not None and next_ns > until_ns:
                if until_ns > self.now_ns:
                    self._pass(until_ns, speeds, rates)
                return None
            self._pass(next_ns, speeds, rates)

    def landed(self) -> tuple[tuple[int, int], ...]:
        """Loads of lanes between two steps that are complete and were not told before."""
        if not self._landings:
            return ()
        done = [
            landing
            for landing in self._landings
            if landing.copy.end_ns <= self.now_ns and self._lanes[landing.model].wait is NOTHING
        ]
        self._landings = [landing for landing in self._landings if landing not in done]
        done.sort(key=lambda landing: landing.copy.end_ns)
        return tuple((landing.model, landing.layer) for landing in done)

    def _foresee(self) -> tuple[list[int], tuple[int, int], int]:
        """Progress a nanosecond of each lane that computes and of copies, and when the first event comes."""
        computing = [run for run in self._lanes if run.wait is DEVICE]
        beside = MILLION if self._wires.is_busy else self._alone
        speeds = [speed * beside for speed in self._device.speeds([run.use for run in computing])]
        rates = self._wires.rates(beside_computation=bool(computing))
        next_ns = self._wires.next_end_ns(self.now_ns, rates)
        for run, speed in zip(computing, speeds, strict=True):
            next_ns = min(next_ns, self.now_ns - (-run.left // speed))
        for run in self._lanes:
            if run.wait is MOMENT:
                next_ns = min(next_ns, run.until_ns)
        return speeds, rates, next_ns

    def _pass(self, until_ns: int, speeds: list[int], rates: tuple[int, int]) -> None:
        """Let time pass; then what was waited for is over."""
        passed_ns = until_ns - self.now_ns
        computing = [run for run in self._lanes if run.wait is DEVICE]
        for run, speed in zip(computing, speeds, strict=True):
            run.left -= speed * passed_ns
        self._wires.move(self.now_ns, until_ns, rates)
        self.now_ns = until_ns
        for run in self._lanes:
            if run.is_done(until_ns):
                run.go_on()

    def _swap(self, lane: int, batch: Batch) -> list[Copy]:
        """Put swapped KV on the link. vLLM 0.7.3 swaps before it computes."""
        copies: list[Copy] = []
        for n_bytes, way, kind in (
            (batch.swap_out_bytes, D2H, CopyKind.SWAP_OUT),
            (batch.swap_in_bytes, H2D, CopyKind.SWAP_IN),
        ):
            if n_bytes:
                copies.append(self._wires.request(lane, way, n_bytes, self.now_ns))
                if self._copies is not None:
                    self._copies.note(lane, kind, None, None, n_bytes, self.now_ns, copies[-1])
        return copies

    def _fetch(self, lane: int, layer: int, home: int) -> Copy:
        n_bytes = self._shapes[lane].layer_bytes
        copy = self._wires.request(lane, H2D, n_bytes, self.now_ns)
        if self._copies is not None:
            self._copies.note(lane, CopyKind.FETCH, layer, home, n_bytes, self.now_ns, copy)
        return copy
