"""The KV blocks of one model as vLLM 0.15.1 keeps them: one queue of free blocks, cached or not.

Source: vLLM 0.15.1, v1/core/block_pool.py and v1/core/kv_cache_utils.py (``FreeKVCacheBlockQueue``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from policies.errors import HbmOverdrawn
from policies.serving.blocks import RangeId
from policies.serving.free_blocks import LentRange
from policies.serving.prefix_cache import Key
from policies.serving.vllm_v1.ranges import LentRanges

PLACEHOLDER: Final = 0
"""The block that stands for none in a block table; it is never free."""

GroupKey = tuple[int, Key]
"""The content of a block: which group of layers it serves (0: attention), and which prefix it ends."""


class FreeQueuePool:
    """Blocks, who references how many, what they hold, and in which order the free ones will be taken.

    A block is taken from the head of the queue of free blocks and comes back to its tail. It keeps its
    content until it is taken: until then a request may hit it. Lent blocks join at the tail.

    Args:
        n_base: the model's own blocks, the placeholder included.
        spares_cached: blocks without content are taken before cached ones, which vLLM does not look at: for a
            policy that decides what is evicted.

    Attributes:
        step: scheduling steps so far, which the scheduler counts here; a free block remembers the one of its release.

    Raises:
        ValueError: there is no block but the placeholder.
    """

    def __init__(self, n_base: int, *, spares_cached: bool = False) -> None:
        if n_base < 2:
            raise ValueError(f"n_base={n_base} blocks must be at least 2: block {PLACEHOLDER} is a placeholder")
        self.n_base = n_base
        self.n_blocks = n_base
        self.step = 0
        self._free = OrderedDict[int, int]()
        self._empty = OrderedDict[int, int]() if spares_cached else self._free  # joined by blocks without content
        self._empty.update((block, 0) for block in range(PLACEHOLDER + 1, n_base))
        self._spares_cached = spares_cached
        self._n_refs: dict[int, int] = {}
        self._key_of: dict[int, GroupKey] = {}
        self._holders: dict[GroupKey, list[int]] = {}
        self._n_cached_free = 0
        self._lent = LentRanges(n_base)

    @property
    def n_free(self) -> int:
        """Blocks that can be taken now, those with content included."""
        return len(self._free) + len(self._empty) if self._spares_cached else len(self._free)

    @property
    def n_empty(self) -> int:
        """Free blocks without content."""
        return self.n_free - self._n_cached_free

    @property
    def n_cached(self) -> int:
        """Different contents that could be hit."""
        return len(self._holders)

    @property
    def n_used(self) -> int:
        """Blocks that are not free: those referenced, and the placeholder."""
        return self.n_blocks - self.n_free

    @property
    def n_lent_used(self) -> int:
        """Referenced blocks in lent ranges."""
        return self._lent.n_used

    @property
    def n_base_used(self) -> int:
        """Blocks of the model's own that are not free."""
        return self.n_used - self.n_lent_used

    @property
    def n_base_free(self) -> int:
        """Free blocks of the model's own."""
        return self.n_base - self.n_base_used

    def lent_range(self, range_id: RangeId) -> LentRange:
        """A lent range as it is now, and goes on to be until it is returned. Read only."""
        return self._lent[range_id]

    def n_referenced(self, range_id: RangeId) -> int:
        """Referenced blocks in a lent range."""
        return self._lent[range_id].n_used

    def range_of(self, block: int) -> RangeId | None:
        """The lent range that a block lies in, ``None`` for the model's own."""
        return self._lent.find(block)

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._in_order())

    def idle(self) -> Iterator[tuple[int, int]]:
        """Free blocks with content in the order of their eviction, each with its age: steps since its release."""
        return ((block, self.step - step) for block, step in self._free.items() if block in self._key_of)

    def is_free(self, block: int) -> bool:
        """Whether nobody references it."""
        return block in self._free or block in self._empty

    def is_cached(self, block: int) -> bool:
        """Whether it holds content that can be hit."""
        return block in self._key_of

    def find(self, key: GroupKey) -> int | None:
        """The block that has held this content for longest."""
        holders = self._holders.get(key)
        return None if holders is None else holders[0]

    def n_takes_before(self, blocks: set[int], at_most: int) -> int:
        """How many blocks can be taken before one of these is, counted up to ``at_most``."""
        for n_taken, block in enumerate(islice(self._in_order(), at_most)):
            if block in blocks:
                return n_taken
        return min(at_most, self.n_free)

    def take(self, n_blocks: int) -> list[int]:
        """Take blocks for new content from the head of the queue; what was in them is evicted."""
        assert n_blocks <= self.n_free, "the caller has seen to it that they are there"
        blocks = [(self._empty or self._free).popitem(last=False)[0] for _ in range(n_blocks)]
        for block in blocks:
            if block in self._key_of:
                self._n_cached_free -= 1
                self._forget(block)
            self._n_refs[block] = 1
        self._lent.count(blocks, 1)
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Reference blocks that were hit; free ones leave the queue."""
        for block in blocks:
            if block in self._free:
                del self._free[block]
                self._n_cached_free -= 1
                self._n_refs[block] = 1
                self._lent.count((block,), 1)
            else:
                self._n_refs[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each but placeholders, in order; those without any join the queue's tail."""
        for block in blocks:
            if block == PLACEHOLDER:
                continue
            self._n_refs[block] -= 1
            if not self._n_refs[block]:
                del self._n_refs[block]
                is_cached = block in self._key_of
                (self._free if is_cached else self._empty)[block] = self.step
                self._n_cached_free += is_cached
                self._lent.count((block,), -1)

    def evict(self, blocks: Iterable[int]) -> None:
        """Forget what these free blocks hold."""
        for block in blocks:
            self._forget(block)
            self._n_cached_free -= 1
            self._empty[block] = self._free.pop(block) if self._spares_cached else self._free[block]

    def publish(self, block: int, key: GroupKey) -> None:
        """Say what a referenced block holds, or will hold when the step being composed has run."""
        self._key_of[block] = key
        self._holders.setdefault(key, []).append(block)

    def add_range(self, range_id: RangeId, first_block: int, n_blocks: int) -> None:
        """Borrow blocks ``first_block..first_block + n_blocks - 1``: they join the queue's tail.

        Raises:
            ValueError: the range is there already, or overlaps the base or another range.
        """
        lent = self._lent.add(range_id, first_block, n_blocks)
        self._empty.update((block, self.step) for block in lent.blocks)
        self.n_blocks += n_blocks

    def remove_range(self, range_id: RangeId) -> int:
        """Return a range; its cached blocks are evicted.

        Returns:
            How many cached blocks were evicted.

        Raises:
            HbmOverdrawn: a block in it is referenced; nothing was changed.
        """
        lent = self._lent[range_id]
        if lent.n_used:
            raise HbmOverdrawn(f"range {range_id}: {lent.n_used} of its {lent.n_blocks} blocks are in use")
        n_evicted = self._drop(lent.blocks)
        self.n_blocks -= lent.n_blocks
        self._lent.remove(range_id)
        return n_evicted

    def move_out(self, range_id: RangeId) -> dict[int, int]:
        """Move every referenced block of a range to a free block elsewhere, the model's own first.

        Returns:
            Old to new block ids, in the order of the old ones.

        Raises:
            HbmOverdrawn: not enough free blocks elsewhere; nothing was changed.
        """
        lent = self._lent[range_id]
        used = [block for block in lent.blocks if block in self._n_refs]
        free = (block for block in self._in_order() if block not in lent)
        elsewhere = sorted(free, key=lambda block: block >= self.n_base)
        if len(elsewhere) < len(used):
            raise HbmOverdrawn(f"range {range_id}: {len(used)} blocks to move, {len(elsewhere)} free elsewhere")
        moves = dict(zip(used, elsewhere, strict=False))
        self._drop(moves.values())
        for old, new in moves.items():
            self._n_refs[new] = self._n_refs.pop(old)
            if old in self._key_of:
                key = self._key_of[new] = self._key_of.pop(old)
                self._holders[key][self._holders[key].index(old)] = new
            self._empty[old] = self.step
        self._lent.count(moves.keys(), -1)
        self._lent.count(moves.values(), 1)
        return moves

    def _drop(self, blocks: Iterable[int]) -> int:
        """Take free blocks out of the queue, wherever they are; how many of them were cached."""
        n_evicted = 0
        for block in blocks:
            if block in self._key_of:
                del self._free[block]
                self._forget(block)
                n_evicted += 1
            else:
                del self._empty[block]
        self._n_cached_free -= n_evicted
        return n_evicted

    def _in_order(self) -> Iterator[int]:
        return chain(self._empty, self._free) if self._spares_cached else iter(self._free)

    def _forget(self, block: int) -> None:
        key = self._key_of.pop(block)
        holders = self._holders[key]
        holders.remove(block)
        if not holders:
            del self._holders[key]
