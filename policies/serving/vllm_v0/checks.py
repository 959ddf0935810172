"""Stop checks: which sequences have produced their last token, asked at once or one step late.

Source: vLLM 0.7.3, engine/llm_engine.py (``_process_model_outputs``) and
engine/output_processor/stop_checker.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from typing import Final

from policies.serving.lockstep import Lockstep
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.queues import Queues
from policies.serving.vllm_v0.tables import Tables

FINISHED: Final = State.FINISHED  # looked up once: an enum's attributes are slow

Unchecked = tuple[Seq[Sequence], Seq[Sequence]]
"""What a step left to look at: sequences with a new token that may have ended, requests dropped by it."""


class StopChecks:
    """Asks whether sequences have ended, a step at a time, and frees those that have.

    Attributes:
        has_freed: some have, since this was last set back.
    """

    def __init__(self, max_model_len: int, queues: Queues, tables: Tables, lockstep: Lockstep) -> None:
        self.has_freed = False
        self._max_model_len = max_model_len
        self._queues = queues
        self._tables = tables
        self._lockstep = lockstep
        self._due: deque[Unchecked] = deque()
        self._ended_early: list[Sequence] = []

    def is_too_long(self, seq: Sequence) -> bool:
        """Whether the sequence has outgrown the model."""
        return seq.n_tokens > self._max_model_len

    def n_steps_to_limit(self, seq: Sequence) -> int:
        """Tokens after which it has, at least 1."""
        return max(1, self._max_model_len + 1 - seq.n_tokens)

    def put(self, sampled: Seq[Sequence], dropped: Seq[Sequence]) -> None:
        """A step has run, or was composed without rows: its checks are due."""
        self._due.append((sampled, dropped))

    def put_members(self, members: Seq[Sequence], sampled: Seq[Sequence], dropped: Seq[Sequence]) -> None:
        """A step in lockstep has run: ``members`` of it that stopped may have ended, all of them if one is too long."""
        if sampled:
            members = [*sampled, *(seq for seq in members if seq not in sampled)]
        for seq in members:
            seq.awaits_check = True
        self._due.append((members, dropped))

    def dissolve(self) -> None:
        """Every member leaves the lockstep; from now on each has its own check to come, or none."""
        pace = self._lockstep.pace
        if pace is not None and pace.awaits_check:
            sampled, dropped = self._due[-1]
            self._due[-1] = [*sampled, *self._lockstep.members], dropped
        self._lockstep.dissolve()

    def run(self) -> list[Sequence]:
        """Run the oldest step's checks; finished sequences in order, then that step's dropped ones."""
        gone: list[Sequence] = []
        if self._ended_early:
            gone, self._ended_early = self._ended_early, gone
        if self._due:
            sampled, dropped = self._due.popleft()
            pace = self._lockstep.pace
            if pace is not None:
                pace.awaits_check = False
            if sampled:
                gone += [seq for seq in sampled if seq.take_check() and self._ends(seq)]
            if dropped:
                gone += dropped
        if gone:
            self.has_freed = True
            self._forget(gone)
        return gone

    def end_early(self, seq: Sequence) -> bool:
        """Run the check of one sequence out of turn, if it is due; whether it has ended."""
        ended = seq.take_check() and self._ends(seq)
        if ended:
            self._ended_early.append(seq)
        return ended

    def _ends(self, seq: Sequence) -> bool:
        """Look at its last token; free it if that was the last of all."""
        if not seq.has_stopped and not self.is_too_long(seq):
            return False
        self._lockstep.leave(seq)
        self._tables.free(seq)
        self._tables.forget(seq)
        seq.state = FINISHED
        return True

    def _forget(self, gone: Seq[Sequence]) -> None:
        """Take those that have ended out of the running queue."""
        running = self._queues.running
        ended = [seq for seq in gone if seq.state is FINISHED]
        if len(ended) < 4:
            for seq in ended:
                if seq in running:
                    running.remove(seq)
        else:
            self._queues.running = [seq for seq in running if seq.state is State.RUNNING]
