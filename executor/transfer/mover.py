"""Changes of the memory on streams: what waits for what, and which loads are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from torch import Tensor

from executor.memory.homes import Homes
from executor.memory.mover import Fetch, HomeId, Mover
from executor.transfer.slots import Slots
from executor.transfer.streams import Mark, Streams
from policies.memory.ops import Cycle, Load, Op


class Memory(Protocol):
    """The memory whose bytes move."""

    def homes(self, model: int) -> Homes:
        """What each home of a model serves as."""
        ...

    def apply(self, ops: Sequence[Op], mover: Mover) -> None:
        """Carry out ops, all of them or none."""
        ...


@dataclass(frozen=True, slots=True)
class _Landing(Generic[Mark]):
    model: int
    layer: int
    mark: Mark


class StreamMover(Generic[Mark]):
    """Does what a change does to bytes (``Mover``), and keeps the slots of every model in step with it.

    Loads and layers that come to rest are only noted while the change may still be
    refused; then they go onto the link behind the first fetches of a new cycle, in the
    order of the ops, as in the simulator.
    """

    def __init__(self, memory: Memory, slots: Sequence[Slots[Mark]], streams: Streams[Mark]) -> None:
        self._memory = memory
        self._slots = tuple(slots)
        self._streams = streams
        self._waits_for_device = False
        self._at_rest: list[Fetch] = []
        self._landings: list[_Landing[Mark]] = []

    def carry_out(self, ops: Sequence[Op]) -> None:
        """Apply ops to the memory, all of them or none.

        Raises:
            HbmOverdrawn, DriverError, ValueError: as ``DeviceMemory.apply``; nothing was changed.
        """
        self._at_rest.clear()
        self._memory.apply(ops, self)
        for op in ops:
            match op:
                case Cycle(model, cycling, slots):
                    self._slots[model].set_cycle(cycling, slots)
                case Load(model, layer, home):
                    self._landings.append(_Landing(model, layer, self._slots[model].load(layer, home)))
                case _:
                    pass
        for fetch in self._at_rest:
            self._slots[fetch.model].settle(fetch.layer, fetch.home)
        for model, slots in enumerate(self._slots):
            homes = self._memory.homes(model)
            slots.place([homes.home_of(layer) for layer in range(len(homes.uses))])
        self._streams.take_stalls()  # the change waited, not a step

    def landed(self) -> list[tuple[int, int]]:
        """(model, layer) of loads that are complete and were not told before, in order."""
        n_landed = 0
        while n_landed < len(self._landings) and self._streams.is_reached(self._landings[n_landed].mark):
            n_landed += 1
        done, self._landings = self._landings[:n_landed], self._landings[n_landed:]
        return [(landing.model, landing.layer) for landing in done]

    def fence(self, homes: frozenset[HomeId], *, unmaps: bool) -> None:
        """Let the compute stream wait for fetches into these homes; fetches to come wait for the compute stream."""
        for model, home in sorted(homes):
            self._slots[model].quiet(home)
        self._waits_for_device = unmaps
        self._wait()

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Copy on the compute stream, behind every step."""
        with self._streams.computing():
            to.copy_(source)
        self._wait()

    def fill(self, to: Tensor, value: int) -> None:
        """Fill on the compute stream."""
        with self._streams.computing():
            to.fill_(value)

    def load(self, fetch: Fetch) -> None:
        """Nothing yet: the op says the same."""

    def settle(self, fetch: Fetch) -> None:
        """Note it."""
        self._at_rest.append(fetch)

    def _wait(self) -> None:
        if self._waits_for_device:
            self._streams.wait(self._streams.mark())
