"""What a scheduler measures of itself: how much of the prompts it finds in the cache, and how long requests wait."""

from __future__ import annotations

from collections import deque

HIT_WINDOW_STEPS = 1000
"""Ours: the VAMP paper says "windowed" (docs/decisions.md)."""

WAIT_WEIGHT = 5
"""A new wait counts one fifth, as in ``StepEstimates``."""


class Lately:
    """Hit rate of the last steps, and a mean of waits."""

    def __init__(self) -> None:
        self._lookups: deque[tuple[int, int, int]] = deque()  # (step, tokens found, tokens looked up)
        self._n_found = 0
        self._n_looked_up = 0
        self.wait_ns: int | None = None

    def looked_up(self, step: int, n_found: int, n_tokens: int) -> None:
        """A request was admitted that had so many of its tokens in the cache."""
        self._lookups.append((step, n_found, n_tokens))
        self._n_found += n_found
        self._n_looked_up += n_tokens

    def waited(self, wait_ns: int) -> None:
        """A request was admitted that had waited for so long, since it arrived or was preempted."""
        before = self.wait_ns
        self.wait_ns = wait_ns if before is None else before + (wait_ns - before) // WAIT_WEIGHT

    def hit_rate(self, step: int) -> float:
        """Share of the tokens looked up in the window that were found, 0 if there were none."""
        while self._lookups and self._lookups[0][0] <= step - HIT_WINDOW_STEPS:
            _, n_found, n_tokens = self._lookups.popleft()
            self._n_found -= n_found
            self._n_looked_up -= n_tokens
        return self._n_found / self._n_looked_up if self._n_looked_up else 0.0
