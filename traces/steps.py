"""Steps as they were submitted, and as rows: many steps, fewer submissions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from traces.arrays import integers

if TYPE_CHECKING:
    from traces.arrays import Values


@dataclass(slots=True)
class StepRuns:
    """Submissions as they were told, in flat lists: ``each_step`` makes rows of many at a time.

    Attributes:
        facts: of each submission seven numbers: model, prefill tokens, sequences that decode, start, steps,
            waits before the first step, and how many stalls it has in ``stalls_ns``: none or one a step.
        ends_ns: of each step of one submission after the other.
        stalls_ns: of the steps of those submissions that waited for fetched layers.
    """

    facts: list[int] = field(default_factory=list[int])
    ends_ns: list[int] = field(default_factory=list[int])
    stalls_ns: list[int] = field(default_factory=list[int])

    def __len__(self) -> int:
        return len(self.ends_ns)


def each_step(runs: StepRuns) -> list[Values]:
    """Write submissions out step by step: the columns of ``StepRow``."""
    facts = integers(runs.facts).reshape(-1, 7).T
    model, n_prefill_tokens, n_decode_seqs, start_ns, n_steps, waits_ns, n_stalls = facts
    first = np.cumsum(n_steps) - n_steps
    end_ns = integers(runs.ends_ns)
    starts_ns = np.append(0, end_ns[:-1])
    starts_ns[first] = start_ns
    stall_ns = np.zeros_like(end_ns)
    stall_ns[np.repeat(n_stalls, n_steps) > 0] = integers(runs.stalls_ns)
    stall_ns[first] += waits_ns
    models, prefills, decodes = (np.repeat(each, n_steps) for each in (model, n_prefill_tokens, n_decode_seqs))
    return [models, starts_ns, end_ns, prefills, decodes, stall_ns]
