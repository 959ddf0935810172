"""Swapped sequences return, head first, before anything new is admitted.

Source: vLLM 0.7.3, core/scheduler.py, ``_schedule_swapped``.
"""

from __future__ import annotations

from policies.serving.scheduler import Prefill
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.queues import Composition, Queues
from policies.serving.vllm_v0.running import Continued
from policies.serving.vllm_v0.tables import Tables
from policies.view import Ask


def schedule_swapped(now: Composition, queues: Queues, tables: Tables) -> Continued:
    """Swap in from the head of ``swapped`` until one does not fit; it runs in the same step.

    A prompt that was swapped out half-way needs all of its rest within the budget. If
    that is more than the budget ever allows, it never returns (as in vLLM).
    """
    returned = Continued()
    while queues.swapped:
        seq = queues.swapped[0]
        if tables.can_never_return(seq):
            _drop(now, queues, tables)
            continue
        is_decode = seq.n_slots < seq.n_tokens
        n_tokens = 1 if is_decode else seq.n_tokens - seq.n_computed
        if not now.admits(n_tokens) or not _make_room(now, seq, tables):
            break
        queues.swapped.popleft()
        now.step.n_swapped_in += tables.swap_in(seq)
        seq.state = State.RUNNING
        now.schedule(n_tokens)
        if is_decode:
            tables.append(seq)
            returned.decodes.append(seq)
        else:
            returned.prefills.append(Prefill(seq, n_tokens, 0, samples=True))
    return returned


def _make_room(now: Composition, seq: Sequence, tables: Tables) -> bool:
    while (n_missing := tables.n_missing_to_return(seq)) > 0:
        if not now.relieve(n_missing, Ask.WAITING_SHORT):
            return False
    return True


def _drop(now: Composition, queues: Queues, tables: Tables) -> None:
    """Drop the head. Its host blocks are never given back (as in vLLM)."""
    seq = queues.swapped.popleft()
    tables.forget(seq)
    seq.state = State.DROPPED
    now.step.dropped = [*now.step.dropped, seq]
