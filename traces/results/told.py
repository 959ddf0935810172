"""What a run tells some ten times a request, in flat lists until rows are made of thousands of facts at a time."""

from __future__ import annotations

from policies.journal import GapCause


class StepRuns:
    """Submissions as they were told: ``traces.results.steps`` writes them out step by step.

    Attributes:
        facts: of each submission nine numbers: model, prefill tokens, sequences that decode, start, steps,
            waits before the first step, how many stalls it has in ``stalls_ns``: none or one a step; the rest of its
            first step, and how many rests it has in ``rests_ns``: none, where all are alike, or one a step.
        ends_ns: of each step of one submission after the other.
        stalls_ns: of the steps of those submissions that waited for fetched layers.
        rests_ns: of the steps of those submissions whose parts outside the layers differ.
    """

    __slots__ = ("ends_ns", "facts", "rests_ns", "stalls_ns")

    def __init__(self) -> None:
        self.facts: list[int] = []
        self.ends_ns: list[int] = []
        self.stalls_ns: list[int] = []
        self.rests_ns: list[int] = []

    def __len__(self) -> int:
        return len(self.ends_ns)


class GapRuns:
    """Gaps between tokens as they were told, some at a time: a submission tells one or two such runs.

    Attributes:
        causes: of each run.
        facts: of each run its model, how many gaps it has, and how often each of them occurred.
        gaps_ns: of one run after the other.
    """

    __slots__ = ("causes", "facts", "gaps_ns")

    def __init__(self) -> None:
        self.causes: list[GapCause] = []
        self.facts: list[int] = []
        self.gaps_ns: list[int] = []

    def __len__(self) -> int:
        return len(self.gaps_ns)
