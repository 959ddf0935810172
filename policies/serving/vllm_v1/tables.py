"""Block tables: which blocks hold a request's tokens, which it finds in the cache, and which it publishes.

Source: vLLM 0.15.1, v1/core/kv_cache_manager.py and v1/core/kv_cache_coordinator.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from policies.serving.blocks import RangeId
from policies.serving.prefix_cache import Content, Histories
from policies.serving.sequence import Sequence
from policies.serving.vllm_v1.pool import PLACEHOLDER, FreeQueuePool
from policies.serving.vllm_v1.settings import V1Settings
from policies.serving.vllm_v1.states import StateBlocks

ATTENTION: Final = 0
"""The group of the attention layers; state groups count from 1."""


@dataclass(frozen=True, slots=True)
class Hits:
    """Cached blocks with which a request begins: its prefix in attention, and each state group's state behind it."""

    blocks: tuple[int, ...] = ()
    states: tuple[int, ...] = ()


NO_HITS = Hits()


@dataclass(slots=True)
class _Table:
    """What is kept of a request with blocks, besides those of attention, which are ``Sequence.blocks``."""

    n_published: int
    states: list[StateBlocks] = field(default_factory=list[StateBlocks])


class Tables:
    """The block tables of one model's requests.

    Attributes:
        last_users: for each block the request that gave it up last, where the scheduler asks before it evicts.
    """

    def __init__(self, settings: V1Settings, pool: FreeQueuePool) -> None:
        self._settings = settings
        self._pool = pool
        self._histories = Histories()
        self._contents: dict[int, Content] = {}
        self._tables: dict[Sequence, _Table] = {}
        self.last_users: dict[int, int] = {}

    def find_hits(self, seq: Sequence) -> Hits:
        """The longest cached prefix of a request without blocks; at least its last token is left to compute.

        Of a hybrid model, the longest one at whose end all groups have kept their state.
        """
        if not self._settings.prefix_caching:
            return NO_HITS
        size, find = self._settings.block_tokens, self._pool.find
        content, blocks = self._content(seq), list[int]()
        for end in range(size, seq.n_tokens, size):
            block = find((ATTENTION, content.key(end)))
            if block is None:
                break
            blocks.append(block)
        groups = range(1, self._settings.n_state_groups + 1)
        while blocks and groups:
            key = content.key(len(blocks) * size)
            states = [state for group in groups if (state := find((group, key))) is not None]
            if len(states) == len(groups):
                return Hits(tuple(blocks), tuple(states))
            blocks.pop()
        return Hits(tuple(blocks))

    def n_missing(self, seq: Sequence, n_new: int, hits: Hits = NO_HITS) -> int:
        """Blocks that would have to become free before the request can get ``n_new`` more tokens, 0 or less if none."""
        n_before = seq.n_slots + len(hits.blocks) * self._settings.block_tokens
        return self._n_needed(seq, n_before + n_new, hits) - self._pool.n_free

    def release_outlived(self, seq: Sequence) -> None:
        """Give up the states that no further token of a request reads: what vLLM does before it looks for blocks."""
        table = self._tables.get(seq)
        for states in table.states if table is not None else ():
            self._pool.release(states.drop_outlived(seq.n_slots))

    def n_missing_for_all(self, seq: Sequence, hits: Hits) -> int:
        """Blocks that would have to become free before all tokens of a waiting request fit, 0 or less if none."""
        return self._n_needed(seq, seq.n_tokens, hits) - self._pool.n_free

    def n_evictions(self, seq: Sequence, n_new: int, hits: Hits = NO_HITS) -> int:
        """How many of the blocks for ``n_new`` more tokens are more than there are free ones without content."""
        n_before = seq.n_slots + len(hits.blocks) * self._settings.block_tokens
        n_fresh = self._n_needed(seq, n_before + n_new, hits) - self._n_pinned(hits)
        return max(0, n_fresh - self._pool.n_empty)

    def allocate(self, seq: Sequence, n_new: int, hits: Hits = NO_HITS) -> None:
        """Give the request its hits and blocks for ``n_new`` more tokens, and publish what will be full."""
        table = self._tables.get(seq)
        if table is None:
            table = self._tables[seq] = self._begin(seq, hits)
        seq.n_slots += n_new
        n_tokens = min(seq.n_slots, self._settings.max_model_len)
        n_fresh = self._n_blocks(n_tokens) - len(seq.blocks)
        if n_fresh > 0:
            seq.blocks += self._pool.take(n_fresh)
        for states in table.states:
            if states.needs_block(n_tokens, 0):
                states.begin(self._pool.take(1)[0], n_tokens)
        self.publish(seq, min(seq.n_slots, seq.n_tokens))

    def publish(self, seq: Sequence, n_tokens: int) -> None:
        """Put the blocks that so many tokens fill into the cache, unless they are there."""
        if not self._settings.prefix_caching:
            return
        table, size = self._tables[seq], self._settings.block_tokens
        n_full = n_tokens // size
        if n_full <= table.n_published:
            return
        content = self._content(seq)
        for index in range(table.n_published, n_full):
            key = content.key((index + 1) * size)
            for group, blocks in enumerate(self._groups(seq, table)):
                if blocks[index] != PLACEHOLDER:
                    self._pool.publish(blocks[index], (group, key))
        table.n_published = n_full

    def free(self, seq: Sequence) -> None:
        """Give back its blocks, each group's last ones first; cached ones keep their content."""
        for blocks in self._groups(seq, self._tables.pop(seq)):
            self._pool.release(reversed(blocks))
            if self._settings.asks_before_evicting:
                self.last_users.update(dict.fromkeys(blocks, seq.request.request_id))
        seq.blocks = []
        seq.n_slots = 0

    def forget(self, seq: Sequence) -> None:
        """The request will not come back."""
        self._contents.pop(seq.request.request_id, None)

    def groups_of(self, seq: Sequence) -> list[list[int]]:
        """Its blocks in every group, attention first; none if it waits."""
        return [list(blocks) for blocks in self._groups(seq, self._tables[seq])] if seq in self._tables else []

    def n_partial(self, seq: Sequence) -> int:
        """Tokens in its last block, if that is not full: what a preemption loses even if its cached blocks survive."""
        return seq.n_slots % self._settings.block_tokens

    def vacate(self, range_id: RangeId) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range; returns (from, to) in order.

        Raises:
            HbmOverdrawn: not enough free blocks elsewhere; nothing was changed.
        """
        moves = self._pool.move_out(range_id)
        for seq, table in self._tables.items() if moves else ():
            seq.blocks = [moves.get(block, block) for block in seq.blocks]
            for states in table.states:
                states.blocks = [moves.get(block, block) for block in states.blocks]
        return list(moves.items())

    def _begin(self, seq: Sequence, hits: Hits) -> _Table:
        settings = self._settings
        self._pool.hold(hits.blocks)
        self._pool.hold(hits.states)
        seq.blocks = list(hits.blocks)
        seq.n_slots = len(hits.blocks) * settings.block_tokens
        states = [StateBlocks(settings.state_block_tokens) for _ in range(settings.n_state_groups)]
        for each, block in zip(states, hits.states, strict=False):
            each.resume(block, len(hits.blocks) - 1)
        return _Table(len(hits.blocks), states)

    def _n_needed(self, seq: Sequence, n_tokens: int, hits: Hits) -> int:
        """Free blocks that a table for so many tokens uses up, hits that are free included."""
        n_tokens = min(n_tokens, self._settings.max_model_len)
        n_needed = max(0, self._n_blocks(n_tokens) - len(seq.blocks) - len(hits.blocks)) + self._n_pinned(hits)
        if seq in self._tables:
            return n_needed + sum(states.needs_block(n_tokens, 0) for states in self._tables[seq].states)
        no_state = StateBlocks(self._settings.state_block_tokens)
        return n_needed + self._settings.n_state_groups * no_state.needs_block(n_tokens, len(hits.blocks))

    def _n_pinned(self, hits: Hits) -> int:
        is_free = self._pool.is_free
        return sum(map(is_free, hits.blocks)) + sum(map(is_free, hits.states))

    def _n_blocks(self, n_tokens: int) -> int:
        return -(-n_tokens // self._settings.block_tokens)

    def _groups(self, seq: Sequence, table: _Table) -> Iterator[list[int]]:
        yield seq.blocks
        for states in table.states:
            yield states.blocks

    def _content(self, seq: Sequence) -> Content:
        content = self._contents.get(seq.request.request_id)
        if content is None:
            content = self._contents[seq.request.request_id] = Content(seq.request, self._histories)
        return content
