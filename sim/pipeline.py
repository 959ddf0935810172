"""Layers that take turns in slots while a model computes, as a recurrence in integer nanoseconds.

In every step, decode or prefill, the m cycling layers are visited in order; a visit reads
a slot into which its weights were fetched before::

    fetch   starts at  max(link free, last reader of its slot done)
    layer   starts at  max(layer before it done, its fetch done)

Fetches run ahead over the end of a step: between two steps the slots hold, or are being
filled with, the first cycling layers of the next one. ``pipeline_events`` plays the same
with processes and events; the two agree to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from policies.memory.slots import Homes
from sim.link import Copy, Link


class Pipeline:
    """The layers of one model: which of them cycle, and how long a step takes.

    Models of one machine share its link by being given the same one. A step requests
    its fetches ahead of time, so steps of different models must not overlap in time
    while layers cycle (temporal sharing); ``EventPipeline`` has no such bound.

    Args:
        layer_bytes: weights of each layer.
        link: over which they are fetched.
        static_slots: see ``Homes``.
        told: is told layer, home, request time and copy of every fetch.
    """

    def __init__(
        self,
        layer_bytes: Sequence[int],
        link: Link,
        *,
        static_slots: bool = False,
        told: Callable[[int, int, int, Copy], None] | None = None,
    ) -> None:
        n_layers = len(layer_bytes)
        self._layer_bytes = tuple(layer_bytes)
        self._link = link
        self._told = told
        self._homes = Homes(n_layers, static_slots=static_slots)
        self._fetches: list[Copy | None] = [None] * n_layers  # by home: the last copy into it
        self._last_visits = [-1] * n_layers  # by home: the last visit that was promised it as its slot
        self._n_read = 0
        self._n_promised = 0

    def set_cycle(self, cycling: Sequence[int], slots: Sequence[int], at_ns: int) -> None:
        """From now on these layers take turns in these homes; call it between two steps.

        A slot that holds one of the first layers to be visited, or is being filled with
        it, serves that visit as it is (see ``Homes``). The other slots are filled anew,
        behind whatever is on the link already.

        Raises:
            ValueError: layers cycle without a slot.
        """
        self._homes.set_cycle(cycling, slots)
        self._last_visits = [-1] * len(self._layer_bytes)
        self._n_read = self._n_promised = 0
        self._fetch_ahead(at_ns)

    def load(self, layer: int, home: int, at_ns: int) -> Copy:
        """Fetch a layer into a home to stay; it goes on cycling until a ``set_cycle`` without it."""
        self._homes.fill(layer, home)
        return self._fetch(layer, home, at_ns)

    def quiet_ns(self, home: int) -> int:
        """When the last copy into a home ends, as known now; it can serve nothing else before."""
        fetch = self._fetches[home]
        return fetch.end_ns if fetch else 0

    @property
    def is_undisturbed(self) -> bool:
        """Whether steps last as long as their computation: nothing cycles, and no copy slows it."""
        return not self._homes.cycling and not (self._link.may_slow and self._link.slows)

    def steps(
        self, start_ns: int, layers_ns: Sequence[int], before_ns: int, after_ns: int, stop_ns: int
    ) -> tuple[list[int], list[int], list[int]]:
        """Run one step after the other, up to the first that ends at or after ``stop_ns``.

        Args:
            start_ns, before_ns, after_ns: see ``step``.
            layers_ns: for each step the device time of every layer.

        Returns:
            For each step when it ends, the device time of its layers, and for how long they waited for their weights.
        """
        n_layers, now_ns = len(self._layer_bytes), start_ns
        ends_ns: list[int] = []
        stalls_ns: list[int] = []
        for layer_ns in layers_ns:
            now_ns, stall_ns = self.step(now_ns, layer_ns, before_ns, after_ns)
            ends_ns.append(now_ns)
            stalls_ns.append(stall_ns)
            if now_ns >= stop_ns:
                break
        return ends_ns, [n_layers * layer_ns for layer_ns in layers_ns[: len(ends_ns)]], stalls_ns

    def step(self, start_ns: int, layer_ns: int | Sequence[int], before_ns: int, after_ns: int) -> tuple[int, int]:
        """Run one step.

        Args:
            start_ns: when it starts, not before the end of the last one.
            layer_ns: device time of every layer, or of each; >= 1.
            before_ns: host time before the first layer.
            after_ns: device time after the last layer.

        Returns:
            When the step ends, and for how long of it layers waited for their weights.
        """
        n_layers, n_cycling = len(self._layer_bytes), len(self._homes.cycling)
        if isinstance(layer_ns, int):
            each_ns, done_ns = layer_ns, [0]
        else:
            each_ns, done_ns = 0, [0, *accumulate(layer_ns)]
        link, period, fetches = self._link, self._homes.period, self._fetches
        is_slowed = link.may_slow
        now_ns, stall_ns, n_done, n_read = start_ns + before_ns, 0, 0, self._n_read
        for _ in range(n_cycling):
            layer, slot = period[n_read % len(period)]
            work_ns = (layer - n_done) * each_ns if each_ns else done_ns[layer] - done_ns[n_done]
            now_ns = link.compute_until(now_ns, work_ns) if is_slowed else now_ns + work_ns
            fetch = fetches[slot]
            if fetch is not None and fetch.end_ns > now_ns:
                stall_ns += fetch.end_ns - now_ns
                now_ns = fetch.end_ns
            n_done = layer + 1
            work_ns = each_ns or done_ns[n_done] - done_ns[layer]
            now_ns = link.compute_until(now_ns, work_ns) if is_slowed else now_ns + work_ns
            n_read += 1
            self._n_read = n_read
            self._fetch_ahead(now_ns)
        work_ns = after_ns + ((n_layers - n_done) * each_ns if each_ns else done_ns[n_layers] - done_ns[n_done])
        return link.compute_until(now_ns, work_ns) if is_slowed else now_ns + work_ns, stall_ns

    def _fetch_ahead(self, at_ns: int) -> None:
        """Promise slots to the next visits, in order, up to one whose slot is still to be read."""
        period, holds, last_visits = self._homes.period, self._homes.holds, self._last_visits
        n_read, n_promised = self._n_read, self._n_promised
        while period:
            layer, slot = period[n_promised % len(period)]
            if last_visits[slot] >= n_read:
                break
            if holds[slot] != layer:
                holds[slot] = layer
                self._fetch(layer, slot, at_ns)
            last_visits[slot] = n_promised
            n_promised += 1
        self._n_promised = n_promised

    def _fetch(self, layer: int, home: int, at_ns: int) -> Copy:
        fetch = self._fetches[home] = self._link.h2d(self._layer_bytes[layer], at_ns)
        if self._told is not None:
            self._told(layer, home, at_ns, fetch)
        return fetch
