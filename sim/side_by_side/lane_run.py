"""One model that runs beside others: its steps as a sequence of things that take time.

Of each the lane says what it waits for: a moment, a copy, or so much computation, which goes as fast as the device
lets it. Everything else happens at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Protocol

from policies.backend import Batch, StepReport
from policies.types import ModelShape, Work
from sim.compute.base import ComputeModel
from sim.link import Copy
from sim.side_by_side.device import Use
from sim.side_by_side.slots import Slots
from traces.results.copies import NEVER


class Wait(Enum):
    """What a lane waits for."""

    NOTHING = "it has nothing in flight"
    MOMENT = "a moment: mappings change, the host prepares"
    COPY = "weights or swapped KV"
    DEVICE = "its computation"


MOMENT: Final = Wait.MOMENT  # looked up once: an enum's attributes are slow
COPY: Final = Wait.COPY
DEVICE: Final = Wait.DEVICE
NOTHING: Final = Wait.NOTHING


class Demand(Protocol):
    """For which shares of its time alone a step keeps SMs and HBM busy."""

    def layer(self, work: Work) -> Use:
        """In its layers."""
        ...

    def head(self, work: Work) -> Use:
        """Outside of them."""
        ...


class World(Protocol):
    """What a lane needs to know of the world around it."""

    now_ns: int

    @property
    def is_copying(self) -> bool:
        """Whether anything is on the link."""
        ...


class LaneRun:
    """The steps of one lane.

    Args:
        world: tells the time.
        work_units: units of computation in a nanosecond of device time alone.

    Attributes:
        wait: what it waits for now: ``until_ns``, ``copy``, or ``left`` units of computation that use the device so.
        report: of the submission that has just ended, until it is taken.
        remap_ns, fence: what changed mappings delay the next step by, and copies that must have ended before it.
    """

    def __init__(
        self, lane: int, shape: ModelShape, compute: ComputeModel, demand: Demand, slots: Slots, world: World,
        work_units: int,
    ) -> None:  # fmt: skip
        self.wait = NOTHING
        self.until_ns = 0
        self.copy: Copy | None = None
        self.left = 0
        self.use = Use(0, 0)
        self.report: StepReport | None = None
        self.remap_ns = 0
        self.fence: list[Copy] = []
        self._lane = lane
        self._n_layers = shape.n_layers
        self._compute = compute
        self._demand = demand
        self._slots = slots
        self._world = world
        self._work_units = work_units
        self._steps: Iterator[None] = iter(())
        self._computed_ns = self._stalled_ns = 0  # in the step under way

    def submit(self, batch: Batch, n_steps: int, stop_ns: int, swap: Callable[[], list[Copy]]) -> None:
        """Begin; what runs several times stops before a step that would end after ``stop_ns``.

        Args:
            swap: puts swapped KV on the link.
        """
        self._steps = self._run(batch, n_steps, stop_ns, swap)
        self.go_on()

    def go_on(self) -> None:
        """What it waited for is over: on to the next thing that takes time, or to the end."""
        self.wait = NOTHING
        for _ in self._steps:
            return

    def is_done(self, now_ns: int) -> bool:
        """Whether what it waits for is over."""
        wait = self.wait
        if wait is DEVICE:
            return self.left <= 0
        if wait is COPY:
            return self.copy is not None and self.copy.end_ns <= now_ns
        return wait is MOMENT and self.until_ns <= now_ns

    def _run(self, batch: Batch, n_steps: int, stop_ns: int, swap: Callable[[], list[Copy]]) -> Iterator[None]:
        start_ns = self._world.now_ns
        yield from self._all_landed(self.fence)
        self.fence = []
        remap_ns, self.remap_ns = self.remap_ns, 0
        yield from self._until(self._world.now_ns + remap_ns)
        mapped_ns = self._world.now_ns
        yield from self._all_landed(swap())
        report = StepReport(self._lane, start_ns, [], [], [], [], self._world.now_ns - mapped_ns, mapped_ns - start_ns)
        if n_steps > 1 and not self._slots.cycling and not self._world.is_copying:
            self._foresee(batch.work, n_steps, stop_ns, report)
        if report.ends_ns:
            yield from self._until(report.ends_ns[-1])
        else:
            yield from self._step(batch.work, report)
        self.report = report

    def _foresee(self, work: Work, n_steps: int, stop_ns: int, report: StepReport) -> None:
        """Enter the steps of a lane that is alone, without waits, as far as they end by then."""
        compute = self._compute
        rest_ns = compute.host_ns(work) + compute.head_ns(work)
        end_ns = self._world.now_ns
        for layer_ns in compute.repeated_layer_ns(work, n_steps):
            end_ns += self._n_layers * layer_ns + rest_ns
            if end_ns > stop_ns:
                break
            report.ends_ns.append(end_ns)
            report.compute_ns.append(self._n_layers * layer_ns)
            report.stall_ns.append(0)
            report.rest_ns.append(rest_ns)

    def _step(self, work: Work, report: StepReport) -> Iterator[None]:
        """Host, layers with their waits, head; entered into the report."""
        start_ns = self._world.now_ns
        self._computed_ns = self._stalled_ns = 0
        yield from self._until(start_ns + self._compute.host_ns(work))
        layer_ns, use, n_done = self._compute.layer_ns(work), self._demand.layer(work), 0
        for layer in self._slots.cycling:
            yield from self._computing((layer - n_done) * layer_ns, use)
            yield from self._fetched()
            yield from self._computing(layer_ns, use)
            self._slots.has_read()
            n_done = layer + 1
        yield from self._computing((self._n_layers - n_done) * layer_ns, use)
        computed_ns, stalled_ns = self._computed_ns, self._stalled_ns
        yield from self._computing(self._compute.head_ns(work), self._demand.head(work))
        end_ns = self._world.now_ns
        report.ends_ns.append(end_ns)
        report.compute_ns.append(computed_ns)
        report.stall_ns.append(stalled_ns)
        report.rest_ns.append(end_ns - start_ns - computed_ns - stalled_ns)

    def _fetched(self) -> Iterator[None]:
        fetch = self._slots.fetch_to_read()
        if fetch is not None:
            since_ns = self._world.now_ns
            yield from self._all_landed([fetch])
            self._stalled_ns += self._world.now_ns - since_ns

    def _computing(self, work_ns: int, use: Use) -> Iterator[None]:
        if work_ns:
            since_ns = self._world.now_ns
            self.left, self.use, self.wait = work_ns * self._work_units, use, DEVICE
            yield
            self._computed_ns += self._world.now_ns - since_ns

    def _until(self, until_ns: int) -> Iterator[None]:
        if until_ns > self._world.now_ns:
            self.until_ns, self.wait = until_ns, MOMENT
            yield

    def _all_landed(self, copies: list[Copy]) -> Iterator[None]:
        for copy in copies:
            if copy.end_ns == NEVER:
                self.copy, self.wait = copy, COPY
                yield
