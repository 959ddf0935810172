"""Running sequences go on, in their order; where blocks are short, the latest give way.

Source: vLLM 0.7.3, core/scheduler.py, ``_schedule_running``.
"""

from __future__ import annotations

from policies.serving.scheduler import Prefill
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.checks import StopChecks
from policies.serving.vllm_v0.queues import Composition, Queues
from policies.serving.vllm_v0.tables import Tables
from policies.view import Ask


class Continued:
    """Running sequences that were scheduled; the others are left at the front of the queue's rest."""

    __slots__ = ("decodes", "prefills")

    def __init__(self) -> None:
        self.decodes: list[Sequence] = []
        self.prefills: list[Prefill] = []


def schedule_running(now: Composition, queues: Queues, tables: Tables, checks: StopChecks) -> Continued:
    """Let running sequences go on from the front of the queue while there are tokens for them.

    They stay in ``queues.running``: those scheduled first, those left over behind them.
    """
    continued = Continued()
    running = queues.running
    i = 0
    while i < len(running):
        seq = running[i]
        n_tokens = _n_new_tokens(now, seq)
        if not n_tokens:
            break
        if seq.awaits_check and checks.is_too_long(seq):
            # Its pending check will end it: no extra decode beyond the model's length. (A prompt that is too long
            # by itself has no check pending; vLLM loses such a request here, ours goes on and is cut off.)
            running.pop(i)
            continue
        if tables.n_touched(seq) > tables.pool.n_free and not _make_room(now, seq, queues, tables, checks):
            break
        n_all, n_slots = seq.lengths()
        if n_slots < n_all:
            tables.append(seq)
            continued.decodes.append(seq)
        else:
            continued.prefills.append(Prefill(seq, n_tokens, 0, seq.n_computed + n_tokens == n_all))
        now.n_tokens_left -= n_tokens
        if now.settings.chunked_prefill:  # otherwise all running sequences were counted beforehand
            now.n_seqs_left -= 1
        i += 1
    return continued


def recompute(seq: Sequence, tables: Tables) -> None:
    """Take everything from a running sequence: it will wait, its output part of its prompt."""
    tables.free(seq)
    restart(seq)


def restart(seq: Sequence) -> None:
    """Send a sequence that holds no blocks back to the start."""
    seq.state = State.WAITING
    seq.n_once_computed = max(seq.n_once_computed, seq.n_computed)
    seq.n_computed = 0
    note_preemption(seq)


def note_preemption(seq: Sequence) -> None:
    """Count it."""
    seq.n_preemptions += 1
    seq.was_preempted = True


def _n_new_tokens(now: Composition, seq: Sequence) -> int:
    if not now.settings.chunked_prefill:
        return 1
    is_decode = seq.n_slots < seq.n_tokens
    return now.chunk(1 if is_decode else seq.n_tokens - seq.n_computed)


def _make_room(now: Composition, seq: Sequence, queues: Queues, tables: Tables, checks: StopChecks) -> bool:
    """Preempt from the end of the queue until there are blocks; whether ``seq`` itself survived."""
    was_short = False
    while (n_missing := tables.n_touched(seq) - tables.pool.n_free) > 0:
        if now.relieve(n_missing, Ask.RUNNING_SHORT):
            continue
        if not was_short and not now.settings.chunked_prefill:
            now.n_seqs_left += 1  # vLLM's quirk: a sequence that was short no longer counts in this step
        was_short = True
        victim = queues.running.pop()
        _preempt(now, victim, queues, tables, checks)
        if victim is seq:
            return False
    return True


def _preempt(now: Composition, victim: Sequence, queues: Queues, tables: Tables, checks: StopChecks) -> None:
    was_unseen = victim.awaits_check
    if checks.end_early(victim):
        now.step.ended = [*now.step.ended, (victim, tables.pool.n_free)]
        return
    if was_unseen:
        now.step.unseen = [*now.step.unseen, victim]
    if now.settings.preemption == "swap":
        now.step.n_swapped_out += tables.swap_out(victim)
        victim.state = State.SWAPPED
        note_preemption(victim)
        now.step.preempted = [*now.step.preempted, (victim, "swap")]
    else:
        recompute(victim, tables)
        now.step.preempted = [*now.step.preempted, (victim, "recompute")]
    queues.victims.append(victim)
