"""Stop checks: which sequences have produced their last token, asked at once or one step late.

Source: vLLM 0.7.3, engine/llm_engine.py (``_process_model_outputs``) and
engine/output_processor/stop_checker.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from policies.serving.lockstep import Lockstep
from policies.serving.sequence import Sequence, State
from policies.serving.vllm_v0.tables import Tables

Unchecked = tuple[Seq[Sequence], Seq[Sequence]]
"""What a step left to look at: sequences with a new token that may have ended, requests dropped by it."""


class StopChecks:
    """Asks whether sequences have ended, a step at a time, and frees those that have."""

    def __init__(self, max_model_len: int, tables: Tables, lockstep: Lockstep) -> None:
        self._max_model_len = max_model_len
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

    def put_members(self, stopped: Seq[Sequence], sampled: Seq[Sequence], dropped: Seq[Sequence]) -> None:
        """A step in lockstep has run: of its members only those that stopped need a look, unless one is too long."""
        members = stopped if self._lockstep.n_steps_to_limit > 0 else self._lockstep.members
        for seq in members:
            seq.awaits_check = True
        self._due.append(([*sampled, *members] if sampled else members, dropped))

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
            if self._lockstep.pace is not None:
                self._lockstep.pace.awaits_check = False
            for seq in sampled:
                if seq.awaits_check and self.ends(seq):
                    gone.append(seq)
            gone += dropped
        return gone

    def end_early(self, seq: Sequence) -> bool:
        """Run the check of one sequence out of turn, if it is due; whether it has ended."""
        ended = seq.awaits_check and self.ends(seq)
        if ended:
            self._ended_early.append(seq)
        return ended

    def ends(self, seq: Sequence) -> bool:
        """Look at its last token; free it if that was the last of all."""
        seq.awaits_check = False
        if not self.is_too_long(seq) and not seq.has_stopped:
            return False
        self._lockstep.leave(seq)
        self._tables.free(seq)
        self._tables.forget(seq)
        seq.state = State.FINISHED
        return True
