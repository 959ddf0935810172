"""The slots of one model whose fetches have no end that is known beforehand: the promises of ``sim/pipeline.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policies.memory.slots import Homes
from sim.link import Copy


class Slots:
    """Which layers cycle, what was fetched where, and what is fetched next.

    Args:
        n_layers: of the model.
        fetch: requests a copy of a layer into a home, now.
        static_slots: see ``Homes``.
    """

    def __init__(self, n_layers: int, fetch: Callable[[int, int], Copy], *, static_slots: bool = False) -> None:
        self._request = fetch
        self._homes = Homes(n_layers, static_slots=static_slots)
        self._fetches: list[Copy | None] = [None] * n_layers  # by home: the last copy into it
        self._last_visits = [-1] * n_layers  # by home: the last visit that was promised it as its slot
        self._n_read = 0
        self._n_promised = 0

    @property
    def cycling(self) -> tuple[int, ...]:
        """Layers that take turns in the slots, increasing."""
        return self._homes.cycling

    def set_cycle(self, cycling: Sequence[int], slots: Sequence[int]) -> None:
        """From now on these layers take turns in these homes; call it between two steps.

        Raises:
            ValueError: layers cycle without a slot.
        """
        self._homes.set_cycle(cycling, slots)
        self._last_visits = [-1] * len(self._last_visits)
        self._n_read = self._n_promised = 0
        self._fetch_ahead()

    def load(self, layer: int, home: int) -> Copy:
        """Fetch a layer into a home to stay; it goes on cycling until a ``set_cycle`` without it."""
        self._homes.fill(layer, home)
        return self._fetch(layer, home)

    def last_copy(self, home: int) -> Copy | None:
        """The last copy into a home, if there ever was one."""
        return self._fetches[home]

    def fetch_to_read(self) -> Copy | None:
        """The copy for which the next visit waits."""
        _, slot = self._homes.visit(self._n_read)
        return self._fetches[slot]

    def has_read(self) -> None:
        """The next visit is done: its slot is free for the layer that comes after."""
        self._n_read += 1
        self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Promise slots to the next visits, in order, up to one whose slot is still to be read."""
        period, holds = self._homes.period, self._homes.holds
        while period:
            layer, slot = period[self._n_promised % len(period)]
            if self._last_visits[slot] >= self._n_read:
                break
            if holds[slot] != layer:
                holds[slot] = layer
                self._fetch(layer, slot)
            self._last_visits[slot] = self._n_promised
            self._n_promised += 1

    def _fetch(self, layer: int, home: int) -> Copy:
        copy = self._fetches[home] = self._request(layer, home)
        return copy
