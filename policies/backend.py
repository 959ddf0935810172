"""The seam: what the loop asks of a world, simulated or real."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from policies.memory.ops import Op
from policies.serving.scheduler import Prefill
from policies.serving.sequence import Sequence
from policies.types import Work


@dataclass(frozen=True, slots=True)
class Change:
    """Ops to carry out in order: all of them or none."""

    ops: tuple[Op, ...]


@dataclass(slots=True, init=False)
class Batch:
    """One step to run, perhaps several times over. Read only; not frozen nor by keyword, as many are made.

    Attributes:
        work: integer aggregates of the first step.
        prefills, decodes: what runs, in execution order.
        swap_out_bytes, swap_in_bytes: KV that crosses the link before the first step starts.
    """

    work: Work
    prefills: Seq[Prefill]
    decodes: Seq[Sequence]
    swap_out_bytes: int
    swap_in_bytes: int

    def __init__(
        self,
        work: Work,
        prefills: Seq[Prefill] = (),
        decodes: Seq[Sequence] = (),
        swap_out_bytes: int = 0,
        swap_in_bytes: int = 0,
    ) -> None:
        self.work = work
        self.prefills = prefills
        self.decodes = decodes
        self.swap_out_bytes = swap_out_bytes
        self.swap_in_bytes = swap_in_bytes

    @property
    def rows(self) -> list[tuple[Sequence, int]]:
        """Each sequence with its number of new tokens, in execution order."""
        return [*((prefill.seq, prefill.n_tokens) for prefill in self.prefills), *((seq, 1) for seq in self.decodes)]


@dataclass(slots=True, init=False)
class StepReport:
    """A submission that has finished: one entry a step in each list. Read only, made like ``Batch``.

    Attributes:
        start_ns: when its first step started.
        ends_ns: when each step ended.
        told_compute_ns: see ``compute_ns``; ``None`` if that is all of a step but for the other parts.
        stall_ns: time the computation of each waited for fetched layers.
        rest_ns: the part of each outside the layers: head, sampling, host.
        swap_ns, remap_ns: waits before the first step, for swapped KV and for changed mappings.
        n_under_way: steps of the lane that have been launched and not ended; more than 0 only if steps are
            launched ahead.
    """

    lane: int
    start_ns: int
    ends_ns: list[int]
    told_compute_ns: list[int] | None
    stall_ns: list[int]
    rest_ns: list[int]
    swap_ns: int
    remap_ns: int
    n_under_way: int

    def __init__(
        self,
        lane: int,
        start_ns: int,
        ends_ns: list[int],
        compute_ns: list[int] | None,
        stall_ns: list[int],
        rest_ns: list[int],
        swap_ns: int = 0,
        remap_ns: int = 0,
        n_under_way: int = 0,
    ) -> None:
        self.lane = lane
        self.start_ns = start_ns
        self.ends_ns = ends_ns
        self.told_compute_ns = compute_ns
        self.stall_ns = stall_ns
        self.rest_ns = rest_ns
        self.swap_ns = swap_ns
        self.remap_ns = remap_ns
        self.n_under_way = n_under_way

    @property
    def compute_ns(self) -> list[int]:
        """Device time of the layers of each step, waits excluded."""
        if self.told_compute_ns is not None:
            return self.told_compute_ns
        values_ns: list[int] = []
        begin_ns = self.start_ns + self.swap_ns + self.remap_ns
        for end_ns, stall_ns, rest_ns in zip(self.ends_ns, self.stall_ns, self.rest_ns, strict=True):
            values_ns.append(end_ns - begin_ns - stall_ns - rest_ns)
            begin_ns = end_ns
        return values_ns

    def part(self, first: int, end: int) -> StepReport:
        """Steps ``first..end - 1`` as a report of their own."""
        return StepReport(
            lane=self.lane,
            start_ns=self.ends_ns[first - 1] if first else self.start_ns,
            ends_ns=self.ends_ns[first:end],
            compute_ns=self.compute_ns[first:end],
            stall_ns=self.stall_ns[first:end],
            rest_ns=self.rest_ns[first:end],
            swap_ns=0 if first else self.swap_ns,
            remap_ns=0 if first else self.remap_ns,
            n_under_way=self.n_under_way,
        )


class Backend(Protocol):
    """A world in which steps take time and memory can be moved.

    A lane is a model. Submissions of one lane run in order; under temporal sharing lanes run one at a time (the
    engine sees to that), under spatial sharing side by side. Then what runs ``n_steps`` times has nothing beside
    it until ``stop_ns``, and stops before a step that would end later, unless that is its first; finishes of one
    instant are reported in the order of the lanes.
    """

    @property
    def now_ns(self) -> int:
        """The present, never decreasing."""
        ...

    def apply(self, change: Change) -> None:
        """Carry out the ops. Loads go on in the background (see ``landed``).

        Raises:
            HbmOverdrawn: it did not fit; nothing was changed.
        """
        ...

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        """Start at most ``n_steps`` repetitions of a batch; stop after the first that ends at or after ``stop_ns``.

        A backend may run fewer, where later blocks do not exist yet. In a repetition every sequence decodes its
        next token. A load that lands also stops it, after the step in which it does, so that results do not
        depend on how many steps were submitted together.

        With ``n_ahead`` = 1 (async scheduling) a step is launched while the one before it runs: there may be one
        step of the lane under way already, and the last repetition is launched before it is known that the one
        before it ends at or after ``stop_ns``. What has ended by then is reported first, the last one by itself:
        that is when the next step is composed.

        Raises:
            ValueError: the lane is busy, ``n_steps`` > 1 for a batch with prefill tokens, or this world launches
                nothing ahead.
        """
        ...

    def advance(self, until_ns: int | None) -> StepReport | None:
        """Go on to the next finished submission, else to ``until_ns`` exactly.

        A finish at ``until_ns`` is reported. ``None`` as a bound needs a submission in flight.
        """
        ...

    def landed(self) -> tuple[tuple[int, int], ...]:
        """(model, layer) of loads that are complete and were not told before, in order of completion.

        Side by side a load is told when its lane is between two steps.
        """
        ...
