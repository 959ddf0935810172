"""A request on its way through a scheduler: the one mutable record of the serving core."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.serving.pace import Pace
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
    that end in the results); neither writes the other's. While the sequence keeps a
    ``Pace``, what a step does to all of its members is counted there: what is read here
    is always up to date.

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
        has_stopped: its last token was the last of all; a scheduler learns of it in its stop check only.
        awaits_check: that check is still to come for its last token.

        first_token_ns, last_token_ns: ends of the steps that gave the first and the last token.
        max_gap_ns: largest gap between two tokens.
        was_preempted: since the last token.
    """

    __slots__ = (
        "_awaits_check",
        "_first_gap",
        "_last_token_ns",
        "_max_gap_ns",
        "_n_computed",
        "_n_output",
        "_n_slots",
        "_pace",
        "blocks",
        "finish_ns",
        "first_token_ns",
        "has_stopped",
        "last_composed_ns",
        "n_cached",
        "n_hit_tokens",
        "n_once_computed",
        "n_preemptions",
        "n_recomputed",
        "request",
        "state",
        "was_preempted",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.state = State.WAITING
        self._pace: Pace | None = None
        self._n_output = 0
        self._n_computed = 0
        self._n_slots = 0
        self.blocks: list[int] = []
        self.n_cached: int | None = None
        self.n_hit_tokens = 0
        self.n_preemptions = 0
        self.n_once_computed = 0
        self.n_recomputed = 0
        self.last_composed_ns = 0
        self.has_stopped = False
        self._awaits_check = False

        self.first_token_ns: int | None = None
        self._last_token_ns: int | None = None
        self.finish_ns: int | None = None
        self._max_gap_ns = 0
        self._first_gap: int | None = None  # number of the first gap of its pace that is its own, too
        self.was_preempted = False

    def join(self, pace: Pace) -> tuple[int, int]:
        """Keep a pace from now on: it stands still so far, or its last step was without this sequence.

        Returns:
            ``lengths``.
        """
        n_tokens, n_slots = self.request.n_prompt_tokens + self._n_output, self._n_slots
        self._n_output -= pace.n_tokens
        self._n_computed -= pace.n_tokens
        self._n_slots -= pace.n_slots
        self._pace = pace
        pace.n_members += 1
        return n_tokens, n_slots

    def leave(self) -> tuple[int, int]:
        """Keep the pace no longer; returns ``lengths``."""
        pace = self._pace
        assert pace is not None
        if self._first_gap is not None:
            self._last_token_ns = pace.last_token_ns
            largest_ns = pace.largest_gap_ns(self._first_gap)
            if largest_ns > self._max_gap_ns:
                self._max_gap_ns = largest_ns
            self._first_gap = None
        self._n_output = n_output = self._n_output + pace.n_tokens
        self._n_computed += pace.n_tokens
        self._n_slots = n_slots = self._n_slots + pace.n_slots
        if pace.awaits_check:
            self._awaits_check = True
        self._pace = None
        pace.n_members -= 1
        return self.request.n_prompt_tokens + n_output, n_slots

    def date(self, at_ns: int) -> int | None:
        """Its next token came, not in a step of its pace; returns when the one before came, if there was one."""
        last_ns = self._last_token_ns
        if last_ns is None:
            self.first_token_ns = at_ns
        elif at_ns - last_ns > self._max_gap_ns:
            self._max_gap_ns = at_ns - last_ns
        self._last_token_ns = at_ns
        self.was_preempted = False
        return last_ns

    def date_in_step(self, pace: Pace) -> None:
        """The first token since it joined is dated: from now on its gaps are those of the pace."""
        self._first_gap = pace.n_gaps

    def compute(self, n_tokens: int, n_cached: int) -> None:
        """So many tokens were computed, behind those found in the cache."""
        assert self._pace is None, "the pace counts"
        first = self._n_computed + n_cached
        self._n_computed = first + n_tokens
        self.n_hit_tokens += n_cached
        if self.n_once_computed > first:
            self.n_recomputed += min(first + n_tokens, self.n_once_computed) - first

    def sample(self, n_tokens: int = 1) -> None:
        """Tokens of the output came, the last of them to be checked."""
        assert self._pace is None, "the pace counts"
        self._n_output += n_tokens
        self._awaits_check = True

    def take_check(self) -> bool:
        """Whether the stop check of its last token was still to come; it is done now."""
        pace = self._pace
        awaited = self._awaits_check or (pace is not None and pace.awaits_check)
        self._awaits_check = False
        return awaited

    def lengths(self) -> tuple[int, int]:
        """``n_tokens`` and ``n_slots``."""
        n_tokens, pace = self.request.n_prompt_tokens + self._n_output, self._pace
        if pace is None:
            return n_tokens, self._n_slots
        return n_tokens + pace.n_tokens, self._n_slots + pace.n_slots

    @property
    def n_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        pace = self._pace
        n_tokens = self.request.n_prompt_tokens + self._n_output
        return n_tokens if pace is None else n_tokens + pace.n_tokens

    @property
    def n_output(self) -> int:
        """See above."""
        pace = self._pace
        return self._n_output if pace is None else self._n_output + pace.n_tokens

    @n_output.setter
    def n_output(self, n_tokens: int) -> None:
        assert self._pace is None, "the pace counts"
        self._n_output = n_tokens

    @property
    def n_computed(self) -> int:
        """See above."""
        pace = self._pace
        return self._n_computed if pace is None else self._n_computed + pace.n_tokens

    @n_computed.setter
    def n_computed(self, n_tokens: int) -> None:
        assert self._pace is None, "the pace counts"
        self._n_computed = n_tokens

    @property
    def n_slots(self) -> int:
        """See above."""
        pace = self._pace
        return self._n_slots if pace is None else self._n_slots + pace.n_slots

    @n_slots.setter
    def n_slots(self, n_slots: int) -> None:
        assert self._pace is None, "the pace counts"
        self._n_slots = n_slots

    @property
    def awaits_check(self) -> bool:
        """See above."""
        return self._awaits_check or (self._pace is not None and self._pace.awaits_check)

    @awaits_check.setter
    def awaits_check(self, awaits: bool) -> None:
        self._awaits_check = awaits

    @property
    def last_token_ns(self) -> int | None:
        """See above."""
        if self._pace is None or self._first_gap is None:
            return self._last_token_ns
        return self._pace.last_token_ns

    @last_token_ns.setter
    def last_token_ns(self, at_ns: int | None) -> None:
        self._last_token_ns = at_ns

    @property
    def max_gap_ns(self) -> int:
        """See above."""
        if self._pace is None or self._first_gap is None:
            return self._max_gap_ns
        return max(self._max_gap_ns, self._pace.largest_gap_ns(self._first_gap))

    @max_gap_ns.setter
    def max_gap_ns(self, gap_ns: int) -> None:
        self._max_gap_ns = gap_ns

    def __repr__(self) -> str:
        return f"Sequence({self.request.request_id}, {self.state.value}, {self.n_tokens} tokens)"
