"""Admission: the head of the waiting queue, as long as it fits.

Source: vLLM 0.7.3, core/scheduler.py, ``_schedule_prefills``.
"""

from __future__ import annotations

from policies.serving.scheduler import Prefill
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.queues import Composition, Queues
from policies.serving.vllm_v0.tables import Tables
from policies.view import Ask


def schedule_prefills(now: Composition, queues: Queues, tables: Tables) -> list[Prefill]:
    """Admit from the head of ``waiting`` until one does not fit; nobody overtakes it.

    All blocks of a prompt are taken at once, even if only its first chunk is computed.
    What can never fit is dropped, also a preempted request that has grown too large.
    """
    prefills: list[Prefill] = []
    if not now.n_tokens_left:
        return prefills
    prompt_limit = now.settings.prompt_limit
    while queues.waiting:
        seq = queues.waiting[0]
        n_tokens, n_cached = _n_new_tokens(now, seq, tables)
        if n_tokens + n_cached > prompt_limit or tables.can_never_admit(seq):
            _drop(now, queues, tables)
            continue
        if not now.admits(n_tokens) or not _make_room(now, seq, tables):
            break
        queues.waiting.popleft()
        tables.admit(seq)
        seq.state = State.RUNNING
        queues.running.append(seq)
        now.schedule(n_tokens)
        prefills.append(Prefill(seq, n_tokens, n_cached, samples=n_tokens + n_cached == seq.n_tokens))
    return prefills


def _n_new_tokens(now: Composition, seq: Sequence, tables: Tables) -> tuple[int, int]:
    """Tokens to compute, and tokens found in the cache before them. At least the last token is computed."""
    n_cached = tables.n_cached_tokens(seq)
    n_tokens = seq.n_tokens - n_cached
    if not n_tokens:
        n_tokens, n_cached = 1, n_cached - 1
    return now.chunk(n_tokens) if now.settings.chunked_prefill else n_tokens, n_cached


def _make_room(now: Composition, seq: Sequence, tables: Tables) -> bool:
    while (n_missing := tables.n_missing_to_admit(seq)) > 0:
        if not now.relieve(n_missing, Ask.WAITING_SHORT):
            return False
    return True


def _drop(now: Composition, queues: Queues, tables: Tables) -> None:
    seq = queues.waiting.popleft()
    tables.forget(seq)
    seq.state = State.DROPPED
    now.step.dropped.append(seq)
