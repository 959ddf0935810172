"""Compute times that are off by a little, to see what hangs on them.

A policy acts at thresholds: whether one more layer is lent can turn on one step being a little longer, and the whole
run with it. A figure that a run gives is therefore one of those that it might have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from policies.types import Work
from sim.compute.base import ComputeModel, ends_of
from sim.compute.moe import LayerTimes, MoeCompute

PROMPT_TOKENS = 256
"""Prompts that differ by less are off alike."""


class Deviation:
    """A factor around 1 for each size of step, drawn when that size first comes.

    Args:
        deviation: of the factors.
        stream: names the draw; others are independent of it.
    """

    def __init__(self, deviation: float, stream: str) -> None:
        self._deviation, self._stream = deviation, stream
        self._factors: dict[tuple[int, int], float] = {}

    def factor(self, work: Work) -> float:
        """By how much steps of this size are longer, never below 0."""
        size = work.n_decode_seqs, work.n_prefill_tokens // PROMPT_TOKENS
        if size not in self._factors:
            drawn = Random(f"{self._stream} {size}").gauss(1.0, self._deviation)
            self._factors[size] = max(0.0, drawn)
        return self._factors[size]


class Perturbed:
    """Takes the layers to last longer or shorter by a factor for each size of step: see ``Deviation``."""

    def __init__(self, model: ComputeModel, deviation: float, stream: str) -> None:
        self._model = model
        self._factor = Deviation(deviation, stream).factor

    def layer_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return round(self._model.layer_ns(work) * self._factor(work))

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """See ``ComputeModel``: repetitions have the same sequences, hence the same factor."""
        factor = self._factor(work)
        return [round(layer_ns * factor) for layer_ns in self._model.repeated_layer_ns(work, n_steps)]

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return self._model.head_ns(work)

    def host_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return self._model.host_ns(work)


class PerturbedExperts:
    """The same for a rank of a mixture of experts: every part of a layer is off alike."""

    def __init__(self, model: MoeCompute, deviation: float, stream: str) -> None:
        self._model = model
        self._factor = Deviation(deviation, stream).factor

    def layers(self, work: Work) -> Sequence[LayerTimes]:
        """See ``MoeCompute``; layers that were one object stay one."""
        factor, scaled = self._factor(work), dict[LayerTimes, LayerTimes]()
        layers = self._model.layers(work)
        for times in dict.fromkeys(layers):
            scaled[times] = replace(
                times,
                mixer_ns=round(times.mixer_ns * factor),
                gate_up_ns=round(times.gate_up_ns * factor),
                down_ns=round(times.down_ns * factor),
                reduce_ns=round(times.reduce_ns * factor),
            )
        return [scaled[times] for times in layers]

    def head_ns(self, work: Work) -> int:
        """See ``MoeCompute``."""
        return self._model.head_ns(work)

    def host_ns(self, work: Work) -> int:
        """See ``MoeCompute``."""
        return self._model.host_ns(work)
