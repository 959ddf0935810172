"""What a server measures of its own steps, for policies to decide from."""

from __future__ import annotations

from collections.abc import Sequence


class StepEstimates:
    """Exponentially weighted means of step times, in integer nanoseconds.

    Decode steps are kept by batch bucket (powers of two), so that a change of batch
    does not look like a change of speed. The paper leaves the estimator open; weight
    0.2 is hardware.md 6.5's proposal (docs/decisions.md).
    """

    WEIGHT = 5  # a new value counts one fifth

    def __init__(self) -> None:
        self._decode_ns: dict[int, int] = {}
        self._rest_ns: dict[int, int] = {}
        self._prefill_ns: int | None = None

    def saw_decodes(self, n_seqs: int, compute_ns: Sequence[int], rest_ns: Sequence[int]) -> None:
        """Take in decode steps of ``n_seqs`` sequences: layers' device time and the rest of each."""
        bucket = n_seqs.bit_length()
        for table, values in ((self._decode_ns, compute_ns), (self._rest_ns, rest_ns)):
            mean = table.get(bucket, values[0])
            for value in values:
                mean += (value - mean) // self.WEIGHT
            table[bucket] = mean

    def saw_prefill(self, compute_ns: int) -> None:
        """Take in one prefill step."""
        mean = self._prefill_ns
        self._prefill_ns = compute_ns if mean is None else mean + (compute_ns - mean) // self.WEIGHT

    def decode_ns(self, n_seqs: int) -> int | None:
        """Device time of the layers in a decode step, from the nearest bucket seen (ties: the smaller)."""
        return _nearest(self._decode_ns, n_seqs.bit_length())

    def rest_ns(self, n_seqs: int) -> int:
        """The part of a decode step outside the layers, 0 until measured."""
        return _nearest(self._rest_ns, n_seqs.bit_length()) or 0

    @property
    def prefill_ns(self) -> int | None:
        """Device time of the layers in a prefill step."""
        return self._prefill_ns


def _nearest(table: dict[int, int], bucket: int) -> int | None:
    if not table:
        return None
    return table[min(table, key=lambda seen: (abs(seen - bucket), seen))]
