"""What every trace format gives: one request a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request as a trace recorded it.

    Attributes:
        arrival_ns: since the first row of the file.
        n_prompt_tokens, n_output_tokens: as recorded, 0 if there were none.
    """

    arrival_ns: int
    n_prompt_tokens: int
    n_output_tokens: int

    @property
    def is_failed(self) -> bool:
        """Nothing went in or nothing came out: a request that was not served, so it is not replayed."""
        return self.n_prompt_tokens == 0 or self.n_output_tokens == 0
