"""What the simulator asks of a source of compute times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from policies.types import Work


class ComputeModel(Protocol):
    """How long one model computes on one machine, from what a step computes.

    A source reads nothing but the integers of ``Work``, so equal steps take equal times.
    """

    def layer_ns(self, work: Work) -> int:
        """Device time of one layer."""
        ...

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """Device time of one layer in each of ``n_steps`` repetitions of a decode step.

        A repetition finds ``n_decode_seqs`` more context tokens than the one before;
        entry i equals ``layer_ns`` of that step to the nanosecond.
        """
        ...

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """Ends of such steps one behind the other: see ``ends_of``."""
        ...

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers: embedding, last norm, logits, sampling."""
        ...

    def host_ns(self, work: Work) -> int:
        """Time of the host before the device can start: scheduling, inputs, outputs."""
        ...


def ends_of(layers_ns: Sequence[int], start_ns: int, n_layers: int, rest_ns: int, stop_ns: int) -> list[int]:
    """When steps end that wait for nothing, one behind the other, up to the first that ends at or after ``stop_ns``.

    Args:
        layers_ns: for each step the device time of every layer.
        rest_ns: of each step, outside its layers.
    """
    now_ns = start_ns
    ends_ns: list[int] = []
    for layer_ns in layers_ns:
        now_ns += n_layers * layer_ns + rest_ns
        ends_ns.append(now_ns)
        if now_ns >= stop_ns:
            break
    return ends_ns
