"""Running sequences that all decode in every step: their slots, blocks and limits, counted for all at once.

Where nothing but decoding happens, what a step does depends on few numbers: how many
sequences begin a block in it (they repeat every ``block_tokens`` steps), how many blocks
are free, and when the next one grows too long. Whatever else happens is left to the
scheduler, for which every sequence leaves its pace (``dissolve``).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Final

from policies.serving.blocks import BlockPool
from policies.serving.pace import Pace
from policies.serving.sequence import Sequence

NEVER: Final = 2**62


class Lockstep:
    """The members of a pace, in the order of the running queue, of which they are the first.

    Args:
        pool: gives them blocks.
        block_tokens: tokens of a block.
        max_model_len: a longer sequence ends.

    Attributes:
        pace: what the members have in common, ``None`` if there are none.
        n_context_tokens: tokens of all members together.
    """

    def __init__(self, pool: BlockPool, block_tokens: int, max_model_len: int) -> None:
        self.pace: Pace | None = None
        self.n_context_tokens = 0
        self._pool = pool
        self._block_tokens = block_tokens
        self._max_model_len = max_model_len
        self._members: dict[Sequence, None] = {}
        self._beginners: list[list[Sequence]] = []  # who begins a block with which slot of the pace, modulo a block
        self._full_at = NEVER

    @property
    def members(self) -> Seq[Sequence]:
        """Those that keep the pace, in order."""
        return list(self._members)

    def step(self, running: Seq[Sequence]) -> Seq[Sequence] | None:
        """Let all of ``running`` join, and give each a slot for its next token.

        Returns:
            Those that were not members before; ``None`` if more than that would come of it, since one of them
            has a prompt to compute, is too long, or there is not vLLM's one free block for every member, even
            for one with room in its last. Nobody got a slot then.
        """
        joined: Seq[Sequence] = ()
        if len(running) > len(self._members):
            joined = running[len(self._members) :]
            if not self._join(joined):
                return None
        pace = self.pace
        assert pace is not None
        beginners = self._beginners[pace.n_slots % self._block_tokens]
        if len(beginners) >= self._pool.n_free or (pace.n_tokens >= self._full_at and self._is_full(pace)):
            return None
        pace.n_slots += 1
        if beginners:
            self._give_blocks(beginners)
        return joined

    def leave(self, seq: Sequence) -> bool:
        """Let one go that has ended; whether it was a member."""
        if seq not in self._members:
            return False
        del self._members[seq]
        pace = self.pace
        assert pace is not None
        n_tokens, n_slots = seq.leave()
        self._beginners[(pace.n_slots - n_slots) % self._block_tokens].remove(seq)
        self.n_context_tokens -= n_tokens
        if not self._members:
            self.pace = None
        return True

    def dissolve(self) -> None:
        """Let all go, and forget the pace."""
        for seq in self._members:
            seq.leave()
        self._members.clear()
        self.n_context_tokens = 0
        self.pace = None

    def take_slots(self, n_steps: int) -> None:
        """Give every member a slot a step, token by token and each time in their order."""
        pace, size = self.pace, self._block_tokens
        assert pace is not None
        beginners: list[Sequence] = []
        for slot in range(pace.n_slots, pace.n_slots + n_steps):
            beginners += self._beginners[slot % size]
        pace.n_slots += n_steps
        if beginners:
            self._give_blocks(beginners)

    def advance(self, n_steps: int) -> bool:
        """The step under way ran so often: slots for its repetitions, and a token for each, to be checked.

        Returns:
            Whether a member is too long now.
        """
        pace = self.pace
        if pace is None:  # all have ended since the step was composed
            return False
        if n_steps > 1:
            self.take_slots(n_steps - 1)
        pace.n_tokens += n_steps
        pace.awaits_check = True
        self.n_context_tokens += n_steps * len(self._members)
        return pace.n_tokens >= self._full_at and self._is_full(pace)

    def n_repeats(self, at_most: int) -> int:
        """How often the step under way can run in a row: until one is too long, and with a free block for every
        member before each time."""
        pace, size, n_free = self.pace, self._block_tokens, self._pool.n_free
        assert pace is not None
        if pace.n_tokens + at_most > self._full_at:
            at_most = self._full_at - pace.n_tokens
        if n_free < 1:
            return 1
        rounds, n_left = divmod(n_free - 1, len(self._members))
        n_steps = 1 + rounds * size
        while n_steps < at_most:
            n_taken = len(self._beginners[(pace.n_slots + n_steps - 1) % size])
            if n_taken > n_left:
                return n_steps
            n_left -= n_taken
            n_steps += 1
        return at_most

    def _is_full(self, pace: Pace) -> bool:
        """Whether a member is too long: the one that would be by now may have left."""
        self._full_at = min(self._ends_at(seq.n_tokens) for seq in self._members)
        return pace.n_tokens >= self._full_at

    def _ends_at(self, n_tokens: int) -> int:
        """The pace's count at which one that has ``n_tokens`` now will be too long."""
        assert self.pace is not None
        return self.pace.n_tokens + self._max_model_len + 1 - n_tokens

    def _give_blocks(self, seqs: Seq[Sequence]) -> None:
        """Give each in turn a block, as many times as it is named."""
        blocks = self._pool.take(len(seqs))
        for nth, seq in enumerate(seqs):
            seq.blocks.append(blocks[nth])

    def _join(self, seqs: Seq[Sequence]) -> bool:
        """Let these join, unless one of them has a prompt to compute; whether they did."""
        for seq in seqs:
            n_tokens, n_slots = seq.lengths()
            if n_slots >= n_tokens:
                return False
        pace = self.pace
        if pace is None:
            pace = self.pace = Pace()
            self._beginners = [[] for _ in range(self._block_tokens)]
            self._full_at = NEVER
        for seq in seqs:
            n_tokens, n_slots = seq.join(pace)
            self._members[seq] = None
            self._beginners[(pace.n_slots - n_slots) % self._block_tokens].append(seq)
            self._full_at = min(self._full_at, self._ends_at(n_tokens))
            self.n_context_tokens += n_tokens
        return True
