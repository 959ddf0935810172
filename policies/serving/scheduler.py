"""What the engine asks of a scheduler, whichever version of vLLM it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, Protocol

from policies.serving.pace import Pace
from policies.serving.pool import Pool
from policies.serving.sequence import Sequence
from policies.view import Ask

Relieve = Callable[[int, Ask], int]
"""(blocks that are missing, why) -> blocks that were added to the pool, 0 if none."""

Preemption = Literal["recompute", "swap"]


@dataclass(slots=True, init=False)
class Prefill:
    """One prefill in a step: new tokens, tokens found in the cache, whether it ends the prompt and samples."""

    seq: Sequence
    n_tokens: int
    n_cached: int
    samples: bool

    def __init__(self, seq: Sequence, n_tokens: int, n_cached: int, samples: bool) -> None:
        self.seq = seq
        self.n_tokens = n_tokens
        self.n_cached = n_cached
        self.samples = samples


class Step:
    """One composed step: what runs, and what was done to make room.

    Attributes:
        prefills: what is computed of prompts, in execution order, before the decodes.
        decodes: sequences that decode one token, in execution order.
        pace: what the decoding ones have in common if they are in lockstep: all members of it,
            and those whose stop check of the step before came too late.
        joined: those that are new to the pace, in order.
        n_context_tokens: tokens of all decoding sequences together, ``None`` if nobody counted.
        preempted: victims in order of eviction.
        unseen: victims whose last token had not been looked at yet: it reaches the client with their next one.
        ended: victims that turned out to have finished, each with the free blocks that were there after it
            was freed; they come out of the next ``retire``.
        dropped: requests that can never run; they come out of the ``retire`` for this step.
        n_swapped_in, n_swapped_out: KV blocks that cross the link.
    """

    __slots__ = (
        "decodes",
        "dropped",
        "ended",
        "joined",
        "n_context_tokens",
        "n_swapped_in",
        "n_swapped_out",
        "pace",
        "preempted",
        "prefills",
        "unseen",
    )

    def __init__(self, prefills: Seq[Prefill] = (), decodes: Seq[Sequence] = ()) -> None:
        self.prefills = prefills
        self.decodes = decodes
        self.pace: Pace | None = None
        self.joined: Seq[Sequence] = ()
        self.n_context_tokens: int | None = None
        self.preempted: Seq[tuple[Sequence, Preemption]] = ()
        self.unseen: Seq[Sequence] = ()
        self.ended: Seq[tuple[Sequence, int]] = ()
        self.dropped: Seq[Sequence] = ()
        self.n_swapped_in = 0
        self.n_swapped_out = 0

    @property
    def rows(self) -> list[tuple[Sequence, int]]:
        """Each sequence with its new tokens, in execution order."""
        return [*((prefill.seq, prefill.n_tokens) for prefill in self.prefills), *((seq, 1) for seq in self.decodes)]

    @property
    def runs(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.prefills or self.decodes)

    @property
    def acted(self) -> bool:
        """Whether there is a step: something runs, or room was made so that composing again may find what runs."""
        return bool(self.prefills or self.decodes or self.preempted or self.dropped or self.n_swapped_in)


class Scheduler(Protocol):
    """Queues and block tables of one model.

    The engine calls, for every step: ``compose``, [``retire`` if the scheduler is
    asynchronous], run it, ``ran``, [``retire`` if it is not]. A step without rows is not
    run: ``retire`` follows at once. When no request is left it is called once more. With
    ``n_steps_ahead`` the next ``compose`` comes before the ``ran`` of the step under way.
    """

    is_async: bool
    """Output processing lags: the stop checks of a step come after the next is composed (V0)."""

    n_steps_ahead: int
    """Steps that may be composed before the one under way has ended: 1 under async scheduling (V1), else 0."""

    @property
    def pool(self) -> Pool:
        """The model's KV blocks."""
        ...

    def has_work(self) -> bool:
        """Whether any request waits, runs or is swapped out."""
        ...

    @property
    def n_live(self) -> int:
        """Requests that wait, run or are swapped out."""
        ...

    @property
    def n_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        ...

    @property
    def n_running(self) -> int:
        """Sequences with blocks on the device."""
        ...

    @property
    def n_swapped(self) -> int:
        """Sequences with blocks on the host."""
        ...

    def add(self, seq: Sequence) -> None:
        """Put a new sequence at the end of the waiting queue."""
        ...

    def compose(self, now_ns: int, relieve: Relieve) -> Step:
        """Choose what runs next and take its blocks. A step without rows means that nothing can run now."""
        ...

    def n_repeats(self, step: Step, at_most: int) -> int:
        """How often the step can run in a row before any decision could differ, if nothing arrives,
        finishes or changes the pool: at least 1, and 1 for every step with a prefill. Asked after ``retire``."""
        ...

    def compose_again(self, step: Step) -> None:
        """Take the slots of one more repetition of the step that has just ``ran``.

        Only asynchronously, where it is composed before the one before has ended (V1) or has been checked (V0,
        behind one in which a sequence has stopped). ``retire`` and ``ran`` follow.
        """
        ...

    def ran(self, step: Step, n_steps: int, last_composed_ns: int, stopped: Seq[Sequence]) -> None:
        """The step ran ``n_steps`` times: append its tokens and, for repetitions, take their blocks in order.

        Args:
            last_composed_ns: when the last repetition would have been composed, which is the end of
                the one before it; ignored for a single step.
            stopped: sequences whose last token of all came in the last repetition, in execution order. The
                scheduler is told here and looks at it in their stop checks.
        """
        ...

    def retire(self) -> list[Sequence]:
        """Run the stop checks of one step that are due; free its finished.

        Returns:
            Finished requests, then those dropped when that step was composed, each in order.
        """
        ...

    def preempt(self, request_ids: Iterable[int]) -> list[Sequence]:
        """Stop these running or swapped requests, to be recomputed from the front of the waiting queue.

        Returns:
            Those that were stopped, in queue order; one that turns out to have finished comes out of
            the next ``retire`` instead.

        Raises:
            ValueError: a step is being composed.
        """
        ...

    def vacate(self, range_id: tuple[int, int]) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range.

        Returns:
            (from, to) block ids, in order.

        Raises:
            HbmOverdrawn: not enough free blocks elsewhere; nothing was changed.
        """
        ...

    def live(self) -> Iterable[Sequence]:
        """Every waiting, running and swapped sequence, in queue order."""
        ...
