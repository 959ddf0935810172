"""Admission: the head of the waiting queue, as long as its first piece fits.

Source: vLLM 0.15.1, v1/core/sched/scheduler.py, ``schedule``, second loop.
"""

from __future__ import annotations

from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.asking import ask_before_evicting
from policies.serving.vllm_v1.chunks import n_to_begin
from policies.serving.vllm_v1.queues import Composition, Queues
from policies.serving.vllm_v1.tables import Hits, Tables
from policies.view import Ask


def admit_waiting(now: Composition, queues: Queues, tables: Tables) -> None:
    """Admit from the head of ``waiting`` until one does not fit; nobody overtakes it."""
    settings = now.settings
    while queues.waiting and now.n_tokens_left and len(queues.running) != settings.max_num_seqs:
        seq = queues.waiting[0]
        fitted = None if seq in queues.late else _fit(now, seq, tables)
        if fitted is None:
            return
        hits, n_new = fitted
        queues.waiting.popleft()
        queues.running.append(seq)
        tables.allocate(seq, n_new, hits)
        seq.state = State.RUNNING
        seq.n_cached = len(hits.blocks) * settings.block_tokens
        seq.n_hit_tokens += seq.n_cached
        now.begin(seq, n_new, seq.n_cached)


def _fit(now: Composition, seq: Sequence, tables: Tables) -> tuple[Hits, int] | None:
    """What the request hits and how many tokens it begins with, ``None`` if it does not fit.

    Looked up again after every relief, which may have evicted what was hit.
    """
    settings = now.settings
    while True:
        hits = tables.find_hits(seq)
        n_new = n_to_begin(seq, len(hits.blocks) * settings.block_tokens, settings, now.n_tokens_left)
        if not n_new:
            return None
        ask_before_evicting(now, seq, n_new, tables, hits=hits)
        n_missing = tables.n_missing(seq, n_new, hits)
        if settings.reserve_full_isl:
            n_missing = max(n_missing, tables.n_missing_for_all(seq, hits))
        if n_missing <= 0:
            return hits, n_new
        if not now.relieve(n_missing, Ask.WAITING_SHORT):
            return None
