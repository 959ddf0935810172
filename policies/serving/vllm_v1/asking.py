"""Before an allocation evicts cached blocks, the engine is asked whether there is a better way (VAMP)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.queues import Composition
from policies.serving.vllm_v1.tables import NO_HITS, Hits, Tables
from policies.view import Ask


def ask_before_evicting(
    now: Composition, seq: Sequence, n_new: int, tables: Tables, *, hits: Hits = NO_HITS, running: Seq[Sequence] = ()
) -> None:
    """Ask for free blocks without content while the request needs more of them, and asking yields some.

    Args:
        hits: what the request will reference: none of it may be evicted for it.
        running: of these, the ones behind the request may be preempted, as the step has not come to them.
    """
    if not now.settings.asks_before_evicting or not (gap := tables.n_evictions(seq, n_new, hits)):
        return
    now.spared = frozenset((*hits.blocks, *hits.states))
    now.behind = running[running.index(seq) + 1 :] if running else ()
    while gap and now.relieve(gap, Ask.EVICTION):
        gap = tables.n_evictions(seq, n_new, hits)
    now.spared, now.behind = frozenset(), ()
