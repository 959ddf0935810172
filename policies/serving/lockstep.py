"""Running sequences that all decode in every step: their slots, blocks and limits, counted for all at once.

Where nothing but decoding happens, what a step does depends on few numbers: how many
sequences begin a block in it (they repeat every ``block_tokens`` steps), how many blocks
are free, and when the next one grows too long. Whatever else happens is left to the
scheduler, for which every sequence leaves its pace (``dissolve``).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from policies.serving.blocks import BlockPool
from policies.serving.pace import Pace
from policies.serving.sequence import Sequence

NEVER = 2**62


class Lockstep:
    """The members of a pace, in the order of the running queue, of which they are the first.

    Args:
        pool: gives them blocks.
        block_tokens: tokens of a block.
        max_model_len: a longer sequence ends.
    """

    def __init__(self, pool: BlockPool, block_tokens: int, max_model_len: int) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._max_model_len = max_model_len
        self._pace: Pace | None = None
        self._members: dict[Sequence, None] = {}
        self._beginners: list[list[Sequence]] = []
        self._n_context_tokens = 0
        self._full_at = NEVER

    @property
    def pace(self) -> Pace | None:
        """What the members have in common, ``None`` if there are none."""
        return self._pace

    @property
    def members(self) -> Seq[Sequence]:
        """Those that keep the pace, in order."""
        return list(self._members)

    @property
    def n_context_tokens(self) -> int:
        """Tokens of all members together."""
        return self._n_context_tokens

    @property
    def n_steps_to_limit(self) -> int:
        """Steps after which a member is too long, 0 if one is; it may have left since."""
        return self._full_at - self._pace.n_tokens if self._pace else NEVER

    def step(self, running: Seq[Sequence]) -> Seq[Sequence] | None:
        """Let all of ``running`` join, and give each a slot for its next token.

        Returns:
            Those that were not members before; ``None`` if more than that would come of it, since one of them
            has a prompt to compute, is too long, or there is not vLLM's one free block for every member, even
            for one with room in its last. Nobody got a slot then.
        """
        pace = self._pace
        joined: Seq[Sequence] = ()
        if len(running) > len(self._members):
            joined = running[len(self._members) :]
            for seq in joined:
                if seq.n_slots >= seq.n_tokens:
                    return None
            pace = self._join(joined)
        assert pace is not None
        n_taken = len(self._beginners[pace.n_slots % self._block_tokens])
        if n_taken >= self._pool.n_free or pace.n_tokens >= self._full_at:
            return None
        self.take_slots(1)
        return joined

    def leave(self, seq: Sequence) -> bool:
        """Let one go that has ended; whether it was a member."""
        if seq not in self._members:
            return False
        del self._members[seq]
        assert self._pace is not None
        self._beginners[(self._pace.n_slots - seq.n_slots) % self._block_tokens].remove(seq)
        self._n_context_tokens -= seq.n_tokens
        seq.leave()
        if not self._members:
            self._pace = None
        return True

    def dissolve(self) -> None:
        """Let all go, and forget the pace."""
        for seq in self._members:
            seq.leave()
        self._members.clear()
        self._n_context_tokens = 0
        self._pace = None

    def take_slots(self, n_steps: int) -> None:
        """Give every member a slot a step, token by token and each time in their order."""
        pace, size, beginners = self._pace, self._block_tokens, self._beginners
        assert pace is not None
        first = pace.n_slots
        pace.n_slots = first + n_steps
        if n_steps == 1:
            seqs = beginners[first % size]
        else:
            seqs = [seq for nth in range(first, first + n_steps) for seq in beginners[nth % size]]
        if seqs:
            for seq, block in zip(seqs, self._pool.take(len(seqs)), strict=True):
                seq.blocks.append(block)

    def advance(self, n_steps: int) -> None:
        """Every member got a token a step, to be checked."""
        pace = self._pace
        if pace is None:  # all have ended since the step was composed
            return
        pace.n_tokens += n_steps
        pace.awaits_check = True
        self._n_context_tokens += n_steps * len(self._members)

    def n_appends_without_shortage(self, n_free: int, at_most: int) -> int:
        """How many more steps leave a free block for every member, counted up to ``at_most``."""
        assert self._pace is not None
        if n_free < 1:
            return 0
        size, first = self._block_tokens, self._pace.n_slots
        rounds, n_left = divmod(n_free - 1, len(self._members))
        n_appends = rounds * size
        while n_appends < at_most:
            n_taken = len(self._beginners[(first + n_appends) % size])
            if n_taken > n_left:
                return n_appends
            n_left -= n_taken
            n_appends += 1
        return at_most

    def _join(self, seqs: Seq[Sequence]) -> Pace:
        pace = self._pace
        if pace is None:
            pace = self._pace = Pace()
            self._beginners = [[] for _ in range(self._block_tokens)]
            self._full_at = NEVER
        for seq in seqs:
            n_tokens = seq.n_tokens
            self._full_at = min(self._full_at, pace.n_tokens + self._max_model_len + 1 - n_tokens)
            self._beginners[(pace.n_slots - seq.n_slots) % self._block_tokens].append(seq)
            self._members[seq] = None
            self._n_context_tokens += n_tokens
            seq.join(pace)
        return pace
