"""Running requests go on, in order of admission; where blocks are short, the latest give way.

Source: vLLM 0.15.1, v1/core/sched/scheduler.py, ``schedule``, first loop.
"""

from __future__ import annotations

from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v1.asking import ask_before_evicting
from policies.serving.vllm_v1.chunks import n_to_continue
from policies.serving.vllm_v1.queues import Composition, Queues
from policies.serving.vllm_v1.tables import Tables
from policies.view import Ask


def schedule_running(now: Composition, queues: Queues, tables: Tables) -> None:
    """Give every running request its next tokens while the budget lasts."""
    running = queues.running
    i = 0
    while i < len(running) and now.n_tokens_left:
        seq = running[i]
        n_new = n_to_continue(seq, now.settings, now.n_tokens_left)
        if n_new:
            if not _make_room(now, seq, n_new, queues, tables):
                return
            tables.allocate(seq, n_new)
            now.go_on(seq, n_new)
        i += 1


def preempt(seq: Sequence, queues: Queues, tables: Tables) -> None:
    """Take everything from a request that has left the running queue: it waits in front of the others."""
    if seq.n_slots >= seq.n_tokens:
        queues.late.add(seq)
    seq.n_once_computed = max(seq.n_once_computed, seq.n_slots)
    tables.free(seq)
    seq.n_computed = 0
    seq.n_preemptions += 1
    seq.was_preempted = True
    seq.state = State.WAITING
    queues.waiting.appendleft(seq)


def _make_room(now: Composition, seq: Sequence, n_new: int, queues: Queues, tables: Tables) -> bool:
    """Preempt from the end of the queue until there are blocks; whether ``seq`` itself survived."""
    tables.release_outlived(seq)
    while True:
        ask_before_evicting(now, seq, n_new, tables, running=queues.running)
        n_missing = tables.n_missing(seq, n_new)
        if n_missing <= 0:
            return True
        if now.relieve(n_missing, Ask.RUNNING_SHORT):
            continue
        victim = queues.running.pop()
        preempt(victim, queues, tables)
        now.preempted.append(victim)
        if victim is seq:
            return False
