"""Layers that take turns in slots, on a device: who runs from where, and which weights are fetched ahead.

The rules are those of the simulator (``policies/memory/slots.py``): in every step the
cycling layers are visited in order, and a visit reads a slot into which its weights were
fetched before::

    a fetch waits for the fetch before it and for the last reader of its slot
    a layer waits for the layer before it and for the last fetch into its home

Fetches run ahead over the end of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

from torch import Tensor

from executor.transfer.streams import Mark, Streams
from policies.memory.slots import Homes


class Slots(Generic[Mark]):
    """The layers of one model.

    Args:
        weights: each home, uint8, on the device.
        masters: by lendable layer its weights, uint8, pinned host memory.
    """

    def __init__(self, weights: Sequence[Tensor], masters: Mapping[int, Tensor], streams: Streams[Mark]) -> None:
        self._weights = tuple(weights)
        self._masters = masters
        self._streams = streams
        self._content = Homes(len(weights))
        self._places: list[int | None] = list(range(len(weights)))
        self._fetches: list[Mark | None] = [None] * len(weights)  # by home: the last, if the computation must wait
        self._last_visits = [-1] * len(weights)  # by home: the last visit that was promised it as its slot
        self._n_read = self._n_promised = 0

    def set_cycle(self, cycling: Sequence[int], slots: Sequence[int]) -> None:
        """From now on these layers take turns in these homes; between two steps.

        Raises:
            ValueError: layers cycle without a slot.
        """
        self._content.set_cycle(cycling, slots)
        self._last_visits = [-1] * len(self._weights)
        self._n_read = self._n_promised = 0
        self._fetch_ahead(self._streams.mark())

    def load(self, layer: int, home: int) -> Mark:
        """Begin to fetch a layer into a home where it is to stay; when that is done."""
        self._content.fill(layer, home)
        return self._fetch(layer, home, self._streams.mark())

    def settle(self, layer: int, home: int) -> None:
        """Let a layer stay in what was its slot; it is fetched if the slot holds another."""
        if self._content.holds[home] != layer:
            self.load(layer, home)

    def place(self, places: Sequence[int | None]) -> None:
        """Enter from where each layer runs, ``None`` for those that cycle."""
        self._places = list(places)

    def quiet(self, home: int) -> None:
        """Let what is asked of the compute stream from now on wait for the last fetch into a home."""
        fetch, self._fetches[home] = self._fetches[home], None
        if fetch is not None:
            self._streams.hold(fetch)

    def enter(self, layer: int) -> int:
        """Where a layer runs from now; the compute stream waits until its weights are there. Layers come in order."""
        home = self._places[layer]
        if home is None:
            visited, home = self._content.visit(self._n_read)
            assert visited == layer, "layers are visited in order"
        self.quiet(home)
        return home

    def leave(self, layer: int) -> None:
        """The layer has been asked of the compute stream: behind it its slot is free for the next."""
        if self._places[layer] is None:
            self._n_read += 1
            self._fetch_ahead(self._streams.mark())

    def _fetch_ahead(self, after: Mark) -> None:
        """Promise slots to the next visits, in order, up to one whose slot is still to be read."""
        content = self._content
        while content.cycling:
            layer, slot = content.visit(self._n_promised)
            if self._last_visits[slot] >= self._n_read:
                return
            if content.holds[slot] != layer:
                content.holds[slot] = layer
                self._fetch(layer, slot, after)
            self._last_visits[slot] = self._n_promised
            self._n_promised += 1

    def _fetch(self, layer: int, home: int, after: Mark) -> Mark:
        fetch = self._fetches[home] = self._streams.fetch(self._weights[home], self._masters[layer], after)
        return fetch
