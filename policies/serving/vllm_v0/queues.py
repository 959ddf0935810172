"""Who waits, runs and is swapped out, and a step while it is being composed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from policies.serving.scheduler import Relieve, Step
from policies.serving.sequence import Sequence
from policies.serving.vllm_v0.settings import V0Settings


@dataclass(slots=True)
class Queues:
    """The three queues of vLLM, and the victims of the step being composed until they wait again."""

    waiting: deque[Sequence] = field(default_factory=deque[Sequence])
    running: list[Sequence] = field(default_factory=list[Sequence])
    swapped: deque[Sequence] = field(default_factory=deque[Sequence])
    victims: list[Sequence] = field(default_factory=list[Sequence])

    def __iter__(self) -> Iterator[Sequence]:
        return chain(reversed(self.victims), self.waiting, self.running, self.swapped)


class Composition:
    """A step being composed, with what the budget still allows.

    Attributes:
        n_tokens_left: tokens that may still be scheduled.
        n_seqs_left: sequences that may still be admitted.
    """

    __slots__ = ("n_seqs_left", "n_tokens_left", "relieve", "settings", "step")

    def __init__(self, settings: V0Settings, relieve: Relieve) -> None:
        self.settings = settings
        self.relieve = relieve
        self.n_tokens_left = settings.max_num_batched_tokens
        self.n_seqs_left = settings.max_num_seqs
        self.step = Step()

    def admits(self, n_tokens: int) -> bool:
        """Whether the budget allows one more sequence with so many tokens."""
        return 0 < n_tokens <= self.n_tokens_left and self.n_seqs_left > 0

    def schedule(self, n_tokens: int) -> None:
        """Use the budget for one more sequence."""
        self.n_tokens_left -= n_tokens
        self.n_seqs_left -= 1

    def chunk(self, n_tokens: int) -> int:
        """How many of ``n_tokens`` the budget allows under chunked prefill.

        With prefix caching vLLM rounds what is left down to whole blocks, for every
        sequence: with less than a block left not even a decode is scheduled.
        """
        n_left = self.n_tokens_left
        if self.settings.prefix_caching:
            n_left -= n_left % self.settings.block_tokens
        return min(n_tokens, n_left)
