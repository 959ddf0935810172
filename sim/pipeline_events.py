"""The slot pipeline again, as SimPy processes: what the recurrence of ``pipeline`` is held against.

A copier promises slots to the visits in order, each once its last reader is done, and puts
copies on the wire; the computation waits until the weights of its layer are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from itertools import count
from typing import Any

from simpy import Environment, Event, Interrupt, Process

from policies.memory.slots import Homes
from sim.wire import Way, Wire


class EventPipeline:
    """The layers of one model, as ``Pipeline`` has them, in the time of a SimPy environment.

    Args:
        env: counts integer nanoseconds.
        wire: over which layers are fetched, shared by the models of a machine.
        layer_bytes: weights of each layer.
        static_slots: see ``Homes``.
    """

    def __init__(self, env: Environment, wire: Wire, layer_bytes: Sequence[int], *, static_slots: bool = False) -> None:
        self._env = env
        self._wire = wire
        self._layer_bytes = tuple(layer_bytes)
        self._homes = Homes(len(layer_bytes), static_slots=static_slots)
        self._arrivals: dict[int, Process] = {}  # by home: the last copy into it
        self._left: dict[int, Event] = {}  # by slot: its last reader is done
        self._promised: defaultdict[int, Event] = defaultdict(env.event)  # by visit
        self._copier: Process | None = None
        self._n_read = 0

    def set_cycle(self, cycling: Sequence[int], slots: Sequence[int]) -> None:
        """From now on these layers take turns in these homes; call it between two steps.

        Fetches that a reader of this instant makes possible come first if their events have
        been played; ``Pipeline`` always has them first.

        Raises:
            ValueError: layers cycle without a slot.
        """
        self._homes.set_cycle(cycling, slots)
        if self._copier and self._copier.is_alive:
            self._copier.interrupt()
        self._promised.clear()
        self._left = {slot: self._env.event().succeed() for slot in slots}
        self._n_read = 0
        self._copier = self._env.process(self._copy_ahead()) if cycling else None

    def load(self, layer: int, home: int) -> Process:
        """Fetch a layer into a home to stay; the process ends when it is there."""
        self._homes.fill(layer, home)
        return self._fetch(layer, home)

    def step(self, layer_ns: Sequence[int], before_ns: int, after_ns: int) -> Generator[Event, Any, tuple[int, int]]:
        """Run one step from now on: when it ends, and for how long layers waited for their weights."""
        stall_ns, resident_ns = 0, 0
        yield self._env.timeout(before_ns)
        for layer, work_ns in enumerate(layer_ns):
            if layer not in self._homes.cycling:
                resident_ns += work_ns
                continue
            yield from self._wire.compute(resident_ns)
            resident_ns = 0
            since_ns = int(self._env.now)
            arrival: Process | None = yield self._promised[self._n_read]
            if arrival:
                yield arrival
            stall_ns += int(self._env.now) - since_ns
            yield from self._wire.compute(work_ns)
            self._leave_slot()
        yield from self._wire.compute(resident_ns + after_ns)
        return int(self._env.now), stall_ns

    def _leave_slot(self) -> None:
        _, slot = self._homes.visit(self._n_read)
        del self._promised[self._n_read]
        self._n_read += 1
        self._left[slot].succeed()

    def _copy_ahead(self) -> Generator[Event, Any, None]:
        try:
            for visit in count():
                layer, slot = self._homes.visit(visit)
                yield self._left[slot]
                self._left[slot] = self._env.event()
                if self._homes.holds[slot] != layer:
                    self._homes.holds[slot] = layer
                    self._fetch(layer, slot)
                self._promised[visit].succeed(self._arrivals.get(slot))
        except Interrupt:
            return

    def _fetch(self, layer: int, home: int) -> Process:
        arrival = self._arrivals[home] = self._env.process(self._wire.copy(Way.TO_DEVICE, self._layer_bytes[layer]))
        return arrival
