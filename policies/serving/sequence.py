"""A request on its way through a scheduler: the one mutable record of the serving core."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.types import Request


class State(Enum):
    """Where a sequence is; each is in exactly one place."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"
    DROPPED = "dropped"


class Sequence:
    """A request and what has become of it so far.

    The scheduler owns the first group of fields, the engine the second (points in time
    that end in the results); neither writes the other's.

    Attributes:
        n_output: output tokens appended so far.
        n_computed: tokens whose K and V are in the cache.
        n_slots: tokens that the block table has room for and has been given.
        blocks: ids of its KV blocks, in order of position; none while it is swapped out.
        n_cached: prompt tokens found in the prefix cache at this (re)start, ``None`` before the search.
        n_hit_tokens: cached tokens over all (re)starts.
        n_once_computed: the most tokens that were in the cache before a preemption.
        n_recomputed: tokens computed again after a preemption.
        last_composed_ns: when a step with it was last composed (kept for the prefix cache alone).
        awaits_check: the last token was appended and its stop check is still to come.

        first_token_ns, last_token_ns: ends of the steps that gave the first and the last token.
        max_gap_ns: largest gap between two tokens.
        was_preempted: since the last token.
    """

    __slots__ = (
        "awaits_check",
        "blocks",
        "finish_ns",
        "first_token_ns",
        "last_composed_ns",
        "last_token_ns",
        "max_gap_ns",
        "n_cached",
        "n_computed",
        "n_hit_tokens",
        "n_once_computed",
        "n_output",
        "n_preemptions",
        "n_recomputed",
        "n_slots",
        "request",
        "state",
        "was_preempted",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.state = State.WAITING
        self.n_output = 0
        self.n_computed = 0
        self.n_slots = 0
        self.blocks: list[int] = []
        self.n_cached: int | None = None
        self.n_hit_tokens = 0
        self.n_preemptions = 0
        self.n_once_computed = 0
        self.n_recomputed = 0
        self.last_composed_ns = 0
        self.awaits_check = False

        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.finish_ns: int | None = None
        self.max_gap_ns = 0
        self.was_preempted = False

    @property
    def n_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return self.request.n_prompt_tokens + self.n_output

    def __repr__(self) -> str:
        return f"Sequence({self.request.request_id}, {self.state.value}, {self.n_tokens} tokens)"
