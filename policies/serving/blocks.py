"""The KV blocks of one model: its own, and those in ranges that it has borrowed.

Block ids are addresses in the model's KV range: ``0..n_base - 1`` are its own, a lent
range is an interval above them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from policies.errors import HbmOverdrawn
from policies.serving.free_blocks import BaseFirst, FreeBlocks, LentRange, OneList
from policies.serving.prefix_cache import Key, PrefixCache

RangeId = tuple[int, int]
"""(lender, home) of a lent range."""


class SharedBytes:
    """A budget in bytes from which the pools of several models take (ours: ``share_idle_kv``)."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.free_bytes = n_bytes

    def take(self, n_bytes: int) -> None:
        """Use bytes; ``n_free`` of the pools has seen to it that they are there."""
        assert n_bytes <= self.free_bytes
        self.free_bytes -= n_bytes

    def give(self, n_bytes: int) -> None:
        """Return bytes that were taken."""
        self.free_bytes += n_bytes
        assert self.free_bytes <= self.n_bytes

    def grow(self, n_bytes: int) -> None:
        """More memory (negative: less) for KV cache: a lent range came or went.

        Raises:
            HbmOverdrawn: what would go is in use.
        """
        if self.free_bytes + n_bytes < 0:
            raise HbmOverdrawn(f"{-n_bytes} bytes of the shared KV budget would go, {self.free_bytes} are free")
        self.n_bytes += n_bytes
        self.free_bytes += n_bytes


class BlockPool:
    """Blocks, who references how many, and which are free.

    A free block holds nothing, or (with prefix caching) content that may be used again;
    those without content are taken first.

    Args:
        n_base: the model's own blocks.
        caching: with a prefix cache; without it a block has one reference at most.
        base_first: without a prefix cache, whether own blocks are taken before lent ones.
        block_bytes: bytes of a block, needed with a budget.
        budget: bytes that several pools share, besides each one's own blocks.

    Raises:
        ValueError: ``n_base`` is negative, or there is a budget without ``block_bytes``.
    """

    def __init__(
        self,
        n_base: int,
        *,
        caching: bool = False,
        base_first: bool = True,
        block_bytes: int = 0,
        budget: SharedBytes | None = None,
    ) -> None:
        if n_base < 0:
            raise ValueError(f"n_base={n_base} blocks must not be negative")
        if budget is not None and block_bytes < 1:
            raise ValueError(f"a shared budget needs block_bytes >= 1, not {block_bytes}")
        self.n_base = n_base
        self.n_blocks = n_base
        self.n_lent_used = 0
        self.cache = PrefixCache() if caching else None
        self._free: FreeBlocks = BaseFirst(n_base) if base_first and not caching else OneList(n_base)
        self._n_refs: dict[int, int] = {}
        self._ranges: dict[RangeId, LentRange] = {}
        self._firsts: list[int] = []  # first blocks of the ranges, increasing
        self._ids: list[RangeId] = []  # of these ranges
        self._block_bytes = block_bytes
        self._budget = budget

    @property
    def n_free(self) -> int:
        """Blocks that can be taken now."""
        n_free = self._free.n_free if self.cache is None else self._free.n_free + self.cache.n_idle
        if self._budget is None:
            return n_free
        return min(n_free, self._budget.free_bytes // self._block_bytes)

    @property
    def n_empty(self) -> int:
        """Unreferenced blocks without content."""
        return self._free.n_free

    @property
    def n_used(self) -> int:
        """Referenced blocks."""
        return self.n_blocks - self._free.n_free - (self.cache.n_idle if self.cache is not None else 0)

    @property
    def n_base_used(self) -> int:
        """Referenced blocks of the model's own."""
        return self.n_used - self.n_lent_used

    @property
    def n_base_free(self) -> int:
        """Unreferenced blocks of the model's own."""
        return self.n_base - self.n_base_used

    def lent_range(self, range_id: RangeId) -> LentRange:
        """A lent range as it is now, and goes on to be until it is returned. Read only."""
        return self._ranges[range_id]

    def n_referenced(self, range_id: RangeId) -> int:
        """Referenced blocks in a lent range."""
        return self._ranges[range_id].n_used

    def range_of(self, block: int) -> RangeId | None:
        """The lent range that a block lies in, ``None`` for the model's own."""
        if block < self.n_base:
            return None
        return self._ids[bisect_right(self._firsts, block) - 1]

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return [*self._free, *(self.cache.idle_in_order() if self.cache is not None else ())]

    def take(self, n_blocks: int) -> list[int]:
        """Take blocks for new content; the cache loses what was in them."""
        blocks = self._free.take(n_blocks) if self.cache is None else self._take_from(self.cache, n_blocks)
        if self._ranges or self._budget is not None:
            self._count_used(blocks, 1)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each, in order; cached ones keep their content."""
        if self.cache is None:
            self._free.give(blocks)
            if self._ranges or self._budget is not None:
                self._count_used(blocks, -1)
            return
        for block in blocks:
            self._n_refs[block] -= 1
            if not self._n_refs[block]:
                del self._n_refs[block]
                if self.cache.is_keyed(block):
                    self.cache.rest(block)
                else:
                    self._free.give((block,))
                self._count_used((block,), -1)

    def obtain(self, key: Key, n_tokens: int) -> int:
        """Reference the block with this content, or take one for it."""
        assert self.cache is not None
        block = self.cache.find(key)
        if block is None:
            (block,) = self.take(1)
            self.cache.publish(block, key, n_tokens)
        else:
            self._hold(self.cache, block)
        return block

    def complete(self, block: int, key: Key, n_tokens: int) -> int:
        """Key a block that has become full; if its content is there already, that block replaces it."""
        assert self.cache is not None
        twin = self.cache.find(key)
        if twin is None:
            self.cache.publish(block, key, n_tokens)
            return block
        self.release((block,))
        self._hold(self.cache, twin)
        return twin

    def add_range(self, range_id: RangeId, first_block: int, n_blocks: int) -> None:
        """Borrow blocks ``first_block..first_block + n_blocks - 1``.

        Raises:
            ValueError: the range is there already, or overlaps the base or another range.
        """
        lent, ranges = LentRange(first_block, n_blocks), self._ranges.values()
        if range_id in self._ranges or first_block < self.n_base or n_blocks < 0:
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} cannot be added")
        if any(first_block < each.first + each.n_blocks and each.first < first_block + n_blocks for each in ranges):
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} overlaps another")
        if self._budget is not None:
            self._budget.grow(n_blocks * self._block_bytes)
        self._ranges[range_id] = lent
        place = bisect_right(self._firsts, first_block)
        self._firsts.insert(place, first_block)
        self._ids.insert(place, range_id)
        self._free.add(lent)
        self.n_blocks += n_blocks

    def remove_range(self, range_id: RangeId) -> int:
        """Return a range; its cached blocks are evicted.

        Returns:
            How many cached blocks were evicted.

        Raises:
            HbmOverdrawn: a block in it is referenced; nothing was changed.
        """
        lent = self._ranges[range_id]
        if lent.n_used:
            raise HbmOverdrawn(f"range {range_id}: {lent.n_used} of its {lent.n_blocks} blocks are in use")
        if self._budget is not None:
            self._budget.grow(-lent.n_blocks * self._block_bytes)
        evicted = [block for block in lent.blocks if self.cache is not None and self.cache.is_idle(block)]
        for block in evicted:
            assert self.cache is not None
            self.cache.forget(block)
        self._free.remove(lent)
        self.n_blocks -= lent.n_blocks
        del self._ranges[range_id]
        self._firsts.remove(lent.first)
        self._ids.remove(range_id)
        return len(evicted)

    def move_out(self, range_id: RangeId) -> dict[int, int]:
        """Move every referenced block of a range to a free block elsewhere, the model's own first.

        Returns:
            Old to new block ids, in the order of the old ones.

        Raises:
            HbmOverdrawn: not enough free blocks elsewhere; nothing was changed.
        """
        lent = self._ranges[range_id]
        free = self.free_order()
        used = sorted(set(lent.blocks).difference(free))
        elsewhere = sorted((block for block in free if block not in lent), key=lambda block: block >= self.n_base)
        if len(elsewhere) < len(used):
            raise HbmOverdrawn(f"range {range_id}: {len(used)} blocks to move, {len(elsewhere)} free elsewhere")
        moves = dict(zip(used, elsewhere, strict=False))
        self._count_used(used, -1)
        self._pick(moves.values())
        for old, new in moves.items():
            if self.cache is not None:
                self.cache.move(old, new)
                self._n_refs[new] = self._n_refs.pop(old)
        self._count_used(list(moves.values()), 1)
        self._free.give(used[::-1])
        return moves

    def _take_from(self, cache: PrefixCache, n_blocks: int) -> list[int]:
        """Blocks without content, then those of the cache that were used least recently."""
        n_empty = min(n_blocks, self._free.n_free)
        blocks = self._free.take(n_empty)
        blocks += [cache.evict() for _ in range(n_blocks - n_empty)]
        for block in blocks:
            self._n_refs[block] = 1
        return blocks

    def _pick(self, blocks: Iterable[int]) -> None:
        idle = {block for block in blocks if self.cache is not None and self.cache.is_idle(block)}
        for block in idle:
            assert self.cache is not None
            self.cache.forget(block)
        self._free.pick(set(blocks) - idle)

    def _hold(self, cache: PrefixCache, block: int) -> None:
        if block in self._n_refs:
            self._n_refs[block] += 1
            return
        cache.wake(block)
        self._n_refs[block] = 1
        self._count_used((block,), 1)

    def _count_used(self, blocks: Sequence[int], sign: int) -> None:
        if self._ranges:
            for block in blocks:
                if block >= self.n_base:
                    self._ranges[self._ids[bisect_right(self._firsts, block) - 1]].n_used += sign
                    self.n_lent_used += sign
        if self._budget is not None:
            n_bytes = len(blocks) * self._block_bytes
            self._budget.take(n_bytes) if sign > 0 else self._budget.give(n_bytes)
