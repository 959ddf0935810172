"""Steps as they were submitted, and as rows: many steps, fewer submissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traces.results.arrays import integers
from traces.results.told import StepRuns

if TYPE_CHECKING:
    from traces.results.arrays import Values


def each_step(runs: StepRuns) -> list[Values]:
    """Write submissions out step by step: the columns of ``StepRow``."""
    facts = integers(runs.facts).reshape(-1, 9).T
    model, n_prefill_tokens, n_decode_seqs, start_ns, n_steps, waits_ns, n_stalls, first_rest_ns, n_rests = facts
    first = np.cumsum(n_steps) - n_steps
    end_ns = integers(runs.ends_ns)
    starts_ns = np.append(0, end_ns[:-1])
    starts_ns[first] = start_ns
    stall_ns = np.zeros_like(end_ns)
    stall_ns[np.repeat(n_stalls, n_steps) > 0] = integers(runs.stalls_ns)
    stall_ns[first] += waits_ns
    rest_ns = np.repeat(first_rest_ns, n_steps)
    rest_ns[np.repeat(n_rests, n_steps) > 0] = integers(runs.rests_ns)
    models, prefills, decodes = (np.repeat(each, n_steps) for each in (model, n_prefill_tokens, n_decode_seqs))
    return [models, starts_ns, end_ns, prefills, decodes, stall_ns, rest_ns]
