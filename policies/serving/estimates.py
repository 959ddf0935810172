"""What a server measures of its own steps, for policies to decide from."""

from __future__ import annotations

from collections.abc import Sequence


class StepEstimates:
    """Exponentially weighted means of step times, in integer nanoseconds.

    Steps are kept by bucket (powers of two of their sequences or tokens), so that a
    change of batch does not look like a change of speed. The paper leaves the estimator
    open (docs/decisions.md).
    """

    WEIGHT = 5  # a new value counts one fifth: hardware.md 6.5 proposes 0.2

    def __init__(self) -> None:
        self._decode_ns: dict[int, int] = {}
        self._rest_ns: dict[int, int] = {}
        self._prefill_ns: dict[int, int] = {}
        self._n_prompts = 0
        self._n_prompt_tokens = 0

    def saw_decodes(self, n_seqs: int, compute_ns: Sequence[int], rest_ns: Sequence[int]) -> None:
        """Take in decode steps of ``n_seqs`` sequences: layers' device time and the rest of each."""
        bucket = n_seqs.bit_length()
        for table, values in ((self._decode_ns, compute_ns), (self._rest_ns, rest_ns)):
            mean_ns = table.get(bucket)
            for value in values:
                mean_ns = value if mean_ns is None else mean_ns + (value - mean_ns) // self.WEIGHT
            if mean_ns is not None:
                table[bucket] = mean_ns

    def saw_prefill(self, prompt_tokens: Sequence[int], compute_ns: int) -> None:
        """Take in one prefill step: the tokens that it computed of each prompt, and the layers' device time."""
        bucket = sum(prompt_tokens).bit_length()
        mean_ns = self._prefill_ns.get(bucket, compute_ns)
        self._prefill_ns[bucket] = mean_ns + (compute_ns - mean_ns) // self.WEIGHT
        self._n_prompts += len(prompt_tokens)
        self._n_prompt_tokens += sum(prompt_tokens)

    def decode_ns(self, n_seqs: int) -> int | None:
        """Device time of the layers in a decode step, from the nearest bucket seen (ties: the smaller)."""
        return _nearest(self._decode_ns, n_seqs)

    def rest_ns(self, n_seqs: int) -> int:
        """The part of a decode step outside the layers, 0 until measured."""
        return _nearest(self._rest_ns, n_seqs) or 0

    @property
    def prefill_ns(self) -> int | None:
        """Device time of the layers in the prefill of one prompt of mean length."""
        return _nearest(self._prefill_ns, self._n_prompt_tokens // self._n_prompts) if self._n_prompts else None

    @property
    def prefill_token_ns(self) -> float | None:
        """Device time of the layers for a token of a prompt of mean length."""
        prefill_ns = self.prefill_ns
        return None if prefill_ns is None else prefill_ns * self._n_prompts / self._n_prompt_tokens


def _nearest(table: dict[int, int], size: int) -> int | None:
    bucket = size.bit_length()
    if bucket in table or not table:
        return table.get(bucket)
    return table[min(table, key=lambda seen: (abs(seen - bucket), seen))]
