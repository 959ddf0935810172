"""What the homes of a model hold, and which slot serves which visit: the rules, without time.

Both worlds follow them: the simulated pipelines, and the executor that copies weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm


class Homes:
    """The homes of one model: at first every layer is in its own.

    Visits of cycling layers count up from 0 at ``set_cycle`` and go on over the ends of
    steps. Visit v uses slot (v mod n_slots), so that the slots alternate, unless every
    layer has a slot for itself or ``static_slots`` wants slot (position mod n_slots).

    Attributes:
        holds: by home: the layer that it holds or is being filled with, ``None`` if of no use.
        cycling: layers that take turns in the slots, increasing.
        slots: homes that serve as slots, in the order of the first visits.
        period: (layer, home) of every visit until the pairs repeat.
    """

    def __init__(self, n_layers: int, *, static_slots: bool = False) -> None:
        self.holds: list[int | None] = list(range(n_layers))
        self.cycling: tuple[int, ...] = ()
        self.slots: tuple[int, ...] = ()
        self._static_slots = static_slots
        self.period: tuple[tuple[int, int], ...] = ()

    def set_cycle(self, cycling: Sequence[int], slots: Sequence[int]) -> None:
        """From now on these layers take turns in these homes.

        A home that goes on as a slot keeps what it holds, and so does one whose layer was
        resident until now; one that was lent holds nothing of use. Of the first layers to
        be visited, one that sits in a slot is served by that slot.

        Raises:
            ValueError: layers cycle without a slot.
        """
        if cycling and not slots:
            raise ValueError(f"layers {tuple(cycling)} cycle without a slot")
        for home in slots:
            if home not in self.slots and self.holds[home] in self.cycling:
                self.holds[home] = None
        self.cycling = tuple(cycling)
        self.slots = self._seated(slots)
        self.period = self._one_period()

    def visit(self, index: int) -> tuple[int, int]:
        """(layer, home) of a visit."""
        return self.period[index % len(self.period)]

    def fill(self, layer: int, home: int) -> None:
        """A home is being filled with a layer, which no other home but a slot holds from now on."""
        for place, held in enumerate(self.holds):
            if held == layer and place not in self.slots:
                self.holds[place] = None
        self.holds[home] = layer

    def _seated(self, slots: Sequence[int]) -> tuple[int, ...]:
        first = self.cycling[: len(slots)]
        seats = {self.holds[home]: home for home in slots if self.holds[home] in first}
        free = [home for home in slots if home not in seats.values()]
        return (*(seats[layer] if layer in seats else free.pop(0) for layer in first), *free)

    def _one_period(self) -> tuple[tuple[int, int], ...]:
        n_cycling, n_slots = len(self.cycling), len(self.slots)
        if not n_cycling:
            return ()
        if self._static_slots or n_cycling <= n_slots:
            return tuple((layer, self.slots[position % n_slots]) for position, layer in enumerate(self.cycling))
        visits = range(lcm(n_cycling, n_slots))
        return tuple((self.cycling[visit % n_cycling], self.slots[visit % n_slots]) for visit in visits)
