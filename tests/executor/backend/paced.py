"""The executor's backend on real pages with made-up times: what it does is real, how long it takes is a ``Pace``."""

from __future__ import annotations

import weakref
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from torch import Tensor

from executor.backend import ExecutorBackend
from executor.clock import Awaited
from executor.lane import StepTimes
from executor.memory.device import DeviceMemory
from executor.memory.extents import measure
from executor.memory.ranges import LendMode
from executor.transfer.mover import StreamMover
from executor.transfer.slots import Slots
from executor.transfer.streams import HostStreams
from executor.vmm.memfd import MemfdDriver
from policies.backend import Batch
from policies.lane import Lane
from policies.memory.ledger import Ledger
from policies.types import HardwareProfile
from sim.vmm import VmmMode
from tests.engine.null_backend import Pace


class PacedClock:
    """Time that passes only when somebody waits, or says so."""

    def __init__(self) -> None:
        self.now_ns: int = 0

    def wait(self, awaited: Seq[Awaited], until_ns: int | None) -> None:
        next_ns = [each.end_ns for each in awaited if isinstance(each, PacedStep)]
        if until_ns is not None:
            next_ns.append(until_ns)
        self.now_ns = max(self.now_ns, min(next_ns))


class PacedDriver(MemfdDriver):
    """Takes its time to unmap, once for each home that changes hands."""

    def __init__(self, hardware: HardwareProfile, clock: PacedClock, pace: Pace) -> None:
        super().__init__(hardware.hbm_bytes, hardware.page_bytes)
        self._clock, self._pace = clock, pace

    def unmap(self, address: int, n_bytes: int) -> None:
        super().unmap(address, n_bytes)
        self._clock.now_ns += self._pace.remap_ns


class PacedStreams(HostStreams):
    """Marks are moments of the paced clock; a fetch takes as long as a load."""

    def __init__(self, clock: PacedClock, pace: Pace) -> None:
        super().__init__()
        self._clock, self._pace = clock, pace

    def mark(self) -> int:
        return self._clock.now_ns

    def fetch(self, to: Tensor, source: Tensor, after: int | None = None) -> int:
        super().fetch(to, source, after)
        return self._clock.now_ns + self._pace.load_ns

    def is_reached(self, mark: int) -> bool:
        return mark <= self._clock.now_ns


@dataclass(frozen=True, slots=True)
class PacedStep:
    clock: PacedClock
    end_ns: int
    times: StepTimes

    def is_done(self) -> bool:
        return self.end_ns <= self.clock.now_ns

    def wait(self) -> None:
        self.clock.now_ns = max(self.clock.now_ns, self.end_ns)

    def finish(self) -> StepTimes:
        return self.times


class PacedLane:
    """A model that computes nothing; cycling layers stall a step by the rule of the ``NullBackend``."""

    def __init__(self, index: int, memory: DeviceMemory, clock: PacedClock, pace: Pace) -> None:
        self._index, self._memory, self._clock, self._pace = index, memory, clock, pace

    def n_steps_with_room(self, batch: Batch) -> int:
        size = self._memory.models[self._index].block_tokens
        return min((len(seq.blocks) * size - seq.n_computed for seq in batch.decodes if seq.blocks), default=2**30)

    def launch(self, batch: Batch, nth: int) -> PacedStep:
        pace, work = self._pace, batch.work
        n_context = work.decode_context_tokens + nth * work.n_decode_seqs
        compute_ns = pace.compute_ns(replace(work, decode_context_tokens=n_context))
        stall_ns = self._stall_ns(compute_ns)
        swap_ns = 0 if nth else pace.swap_byte_ns * (batch.swap_in_bytes + batch.swap_out_bytes)
        end_ns = self._clock.now_ns + swap_ns + compute_ns + stall_ns + pace.rest_ns
        return PacedStep(self._clock, end_ns, StepTimes(swap_ns=swap_ns, compute_ns=compute_ns, stall_ns=stall_ns))

    def save_victims(self) -> None:
        pass

    def moved(self, moves: Seq[tuple[int, int]]) -> None:
        pass

    def _stall_ns(self, compute_ns: int) -> int:
        homes = self._memory.homes(self._index)
        return max(0, (len(homes.cycling) - len(homes.slots)) * self._pace.fetch_ns - compute_ns)


def open_paced(
    hardware: HardwareProfile, lanes: Seq[Lane], ledger: Ledger, pace: Pace, *, vmm_mode: VmmMode, block_tokens: int
) -> ExecutorBackend:
    """Put the models' pages on a memfd; they are given back with the backend."""
    shapes = [lane.shape for lane in lanes]
    extents = measure(
        shapes,
        ledger.partitions,
        [lane.layout for lane in lanes],
        page_bytes=hardware.page_bytes,
        block_tokens=block_tokens,
    )
    clock = PacedClock()
    driver = PacedDriver(hardware, clock, pace)
    mode = LendMode.ALIAS if vmm_mode is VmmMode.ALIAS else LendMode.REMAP
    memory, streams = DeviceMemory(driver, extents, mode=mode), PacedStreams(clock, pace)
    slots = [
        Slots(
            [memory.weights(model, home) for home in range(each.n_homes)],
            {layer: memory.master(model, layer) for layer in each.lendable},
            streams,
        )
        for model, each in enumerate(extents)
    ]
    clock.now_ns = 0
    paced = [PacedLane(index, memory, clock, pace) for index in range(len(lanes))]
    backend = ExecutorBackend(paced, StreamMover(memory, slots, streams), clock)
    weakref.finalize(backend, _close, memory, driver)
    return backend


def _close(memory: DeviceMemory, driver: MemfdDriver) -> None:
    memory.close()
    driver.close()
