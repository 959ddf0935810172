"""Admission: the head of the waiting queue, as long as it fits.

Source: vLLM 0.7.3, core/scheduler.py, ``_schedule_prefills``.
"""

from __future__ import annotations

from typing import Final

from policies.serving.scheduler import Prefill
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.queues import Composition, Queues
from policies.serving.vllm_v0.tables import Tables
from policies.view import Ask

RUNNING: Final = State.RUNNING  # looked up once: an enum's attributes are slow


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
        n_all = seq.n_tokens
        n_tokens, n_cached = _n_new_tokens(now, seq, n_all, tables)
        n_blocks = tables.n_blocks(n_all)
        if n_tokens + n_cached > prompt_limit or tables.can_never_admit(n_blocks):
            _drop(now, queues, tables)
            continue
        if not now.admits(n_tokens) or not _make_room(now, n_blocks, tables):
            break
        queues.waiting.popleft()
        tables.admit(seq, n_all)
        seq.state = RUNNING
        queues.running.append(seq)
        now.schedule(n_tokens)
        prefills.append(Prefill(seq, n_tokens, n_cached, n_tokens + n_cached == n_all))
    return prefills


def _n_new_tokens(now: Composition, seq: Sequence, n_all: int, tables: Tables) -> tuple[int, int]:
    """Of ``n_all``, tokens to compute, and tokens found in the cache before them. At least the last is computed."""
    n_cached = tables.n_cached_tokens(seq)
    n_tokens = n_all - n_cached
    if not n_tokens:
        n_tokens, n_cached = 1, n_cached - 1
    return now.chunk(n_tokens) if now.settings.chunked_prefill else n_tokens, n_cached


def _make_room(now: Composition, n_blocks: int, tables: Tables) -> bool:
    while (n_missing := tables.n_missing_to_admit(n_blocks)) > 0:
        if not now.relieve(n_missing, Ask.WAITING_SHORT):
            return False
    return True


def _drop(now: Composition, queues: Queues, tables: Tables) -> None:
    seq = queues.waiting.popleft()
    tables.forget(seq)
    seq.state = State.DROPPED
    now.step.dropped = [*now.step.dropped, seq]
