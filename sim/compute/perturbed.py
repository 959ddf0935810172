"""Compute times that are off by a little, to see what hangs on them.

A policy acts at thresholds: whether one more layer is lent can turn on one step being a little longer, and the whole
run with it. A figure that a run gives is therefore one of those that it might have given.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.types import Work
from sim.compute.base import ComputeModel

PROMPT_TOKENS = 256
"""Prompts that differ by less are off alike."""


class Perturbed:
    """Takes the layers to last longer or shorter by a factor for each size of step.

    Args:
        deviation: of the factors, around 1.
        stream: names the draw; others are independent of it.
    """

    def __init__(self, model: ComputeModel, deviation: float, stream: str) -> None:
        self._model, self._deviation, self._stream = model, deviation, stream
        self._factors: dict[tuple[int, int], float] = {}

    def layer_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return round(self._model.layer_ns(work) * self._factor(work))

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """See ``ComputeModel``: repetitions have the same sequences, hence the same factor."""
        factor = self._factor(work)
        return [round(layer_ns * factor) for layer_ns in self._model.repeated_layer_ns(work, n_steps)]

    def head_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return self._model.head_ns(work)

    def host_ns(self, work: Work) -> int:
        """See ``ComputeModel``."""
        return self._model.host_ns(work)

    def _factor(self, work: Work) -> float:
        size = work.n_decode_seqs, work.n_prefill_tokens // PROMPT_TOKENS
        if size not in self._factors:
            drawn = Random(f"{self._stream} {size}").gauss(1.0, self._deviation)
            self._factors[size] = max(0.0, drawn)
        return self._factors[size]
