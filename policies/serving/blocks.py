"""The KV blocks of one model: its own, and those in ranges that it has borrowed.

Block ids are addresses in the model's KV range: ``0..n_base - 1`` are its own, a lent
range is an interval above them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.errors import HbmOverdrawn
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


@dataclass(slots=True)
class LentRange:
    """Blocks ``first..first + n_blocks - 1``, of which ``n_used`` are referenced."""

    first: int
    n_blocks: int
    n_used: int = 0

    def __contains__(self, block: int) -> bool:
        return self.first <= block < self.first + self.n_blocks

    @property
    def blocks(self) -> range:
        """Its block ids."""
        return range(self.first, self.first + self.n_blocks)


class FreeBlocks(Protocol):
    """Free blocks without content, in the order in which they will be taken."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...

    def take(self, n_blocks: int) -> list[int]:
        """Take as many, which are there."""
        ...

    def give(self, blocks: Sequence[int]) -> None:
        """Give back blocks, the last of them to be taken first."""
        ...

    def add(self, range_id: RangeId, lent: LentRange) -> None:
        """A range with nothing in it joins."""
        ...

    def remove(self, range_id: RangeId, lent: LentRange) -> None:
        """A range leaves, with those of its blocks that are here."""
        ...

    def pick(self, blocks: set[int]) -> None:
        """Take exactly these blocks, which are here."""
        ...


class BaseFirst:
    """A stack for the base and one for each lent range; the latest ranges drain first.

    Ours: blocks come from the base, then from the ranges in the order in which they were
    added, and go back to where they belong. Without ranges it is vLLM's own order.
    """

    def __init__(self, n_base: int) -> None:
        self._n_base = n_base
        self._base = list(range(n_base - 1, -1, -1))
        self._lent: dict[RangeId, tuple[LentRange, list[int]]] = {}
        self._n_free = n_base

    def __len__(self) -> int:
        return self._n_free

    def __iter__(self) -> Iterator[int]:
        for stack in self._stacks():
            yield from reversed(stack)

    def take(self, n_blocks: int) -> list[int]:
        self._n_free -= n_blocks
        taken: list[int] = []
        for stack in self._stacks():
            n_here = min(n_blocks - len(taken), len(stack))
            if n_here:
                taken += stack[: -n_here - 1 : -1]
                del stack[-n_here:]
            if len(taken) == n_blocks:
                break
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        self._n_free += len(blocks)
        if not self._lent:
            self._base.extend(blocks)
            return
        for block in blocks:
            self._stack_of(block).append(block)

    def add(self, range_id: RangeId, lent: LentRange) -> None:
        self._lent[range_id] = lent, list(reversed(lent.blocks))
        self._n_free += lent.n_blocks

    def remove(self, range_id: RangeId, lent: LentRange) -> None:
        _, stack = self._lent.pop(range_id)
        self._n_free -= len(stack)

    def pick(self, blocks: set[int]) -> None:
        self._n_free -= len(blocks)
        for stack in self._stacks():
            stack[:] = [block for block in stack if block not in blocks]

    def _stacks(self) -> Iterator[list[int]]:
        yield self._base
        for _, stack in self._lent.values():
            yield stack

    def _stack_of(self, block: int) -> list[int]:
        if block < self._n_base:
            return self._base
        return next(stack for lent, stack in self._lent.values() if block in lent)


class OneList:
    """vLLM's one list under prefix caching: given and taken at its head, lent blocks join at its tail."""

    def __init__(self, n_base: int) -> None:
        self._blocks = deque(range(n_base))

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def take(self, n_blocks: int) -> list[int]:
        return [self._blocks.popleft() for _ in range(n_blocks)]

    def give(self, blocks: Sequence[int]) -> None:
        self._blocks.extendleft(blocks)

    def add(self, range_id: RangeId, lent: LentRange) -> None:  # noqa: ARG002  the one list has no ranges
        self._blocks.extend(lent.blocks)

    def remove(self, range_id: RangeId, lent: LentRange) -> None:  # noqa: ARG002
        self._blocks = deque(block for block in self._blocks if block not in lent)

    def pick(self, blocks: set[int]) -> None:
        self._blocks = deque(block for block in self._blocks if block not in blocks)


class BlockPool:
    """Blocks, who references how many, and which are free.

    A free block holds nothing, or (with prefix caching) content that may be used again;
    those without content are taken first.

    Args:
        n_base: the model's own blocks.
        caching: with a prefix cache; without it a block has one reference at most.
        block_bytes: bytes of a block, needed with a budget.
        budget: bytes that several pools share, besides each one's own blocks.

    Raises:
        ValueError: there is no block, or a budget without ``block_bytes``.
    """

    def __init__(
        self, n_base: int, *, caching: bool = False, block_bytes: int = 0, budget: SharedBytes | None = None
    ) -> None:
        if n_base < 0:
            raise ValueError(f"a pool of n_base={n_base} blocks is impossible")
        if budget is not None and block_bytes < 1:
            raise ValueError(f"a shared budget needs block_bytes >= 1, not {block_bytes}")
        self.n_base = n_base
        self.n_blocks = n_base
        self.n_lent_used = 0
        self.cache = PrefixCache() if caching else None
        self._free: FreeBlocks = OneList(n_base) if caching else BaseFirst(n_base)
        self._n_refs: dict[int, int] = {}
        self._ranges: dict[RangeId, LentRange] = {}
        self._by_first: list[tuple[int, RangeId]] = []
        self._block_bytes = block_bytes
        self._budget = budget

    @property
    def n_free(self) -> int:
        """Blocks that can be taken now."""
        n_free = len(self._free) + (self.cache.n_idle if self.cache is not None else 0)
        if self._budget is None:
            return n_free
        return min(n_free, self._budget.free_bytes // self._block_bytes)

    @property
    def n_empty(self) -> int:
        """Unreferenced blocks without content."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Referenced blocks."""
        return self.n_blocks - len(self._free) - (self.cache.n_idle if self.cache is not None else 0)

    @property
    def n_base_used(self) -> int:
        """Referenced blocks of the model's own."""
        return self.n_used - self.n_lent_used

    @property
    def n_base_free(self) -> int:
        """Unreferenced blocks of the model's own."""
        return self.n_base - self.n_base_used

    def n_referenced(self, range_id: RangeId) -> int:
        """Referenced blocks in a lent range."""
        return self._ranges[range_id].n_used

    def range_of(self, block: int) -> RangeId | None:
        """The lent range that a block lies in, ``None`` for the model's own."""
        if block < self.n_base:
            return None
        return self._by_first[bisect_right(self._by_first, block, key=lambda each: each[0]) - 1][1]

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        return [*self._free, *(self.cache.idle_in_order() if self.cache is not None else ())]

    def take(self, n_blocks: int) -> list[int]:
        """Take blocks for new content; the cache loses what was in them."""
        n_empty = min(n_blocks, len(self._free))
        blocks = self._free.take(n_empty)
        if self.cache is not None:
            blocks += [self.cache.evict() for _ in range(n_blocks - n_empty)]
            for block in blocks:
                self._n_refs[block] = 1
        assert len(blocks) == n_blocks, "the caller has seen to it that they are there"
        self._count_used(blocks, 1)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each, in order; cached ones keep their content."""
        if self.cache is None:
            self._free.give(blocks)
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
        lent = LentRange(first_block, n_blocks)
        if range_id in self._ranges or first_block < self.n_base or n_blocks < 1:
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} cannot be added")
        if any(each.first < first_block + n_blocks and first_block in range(each.first + each.n_blocks)
               or first_block < each.first < first_block + n_blocks for each in self._ranges.values()):
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} overlaps another")
        if self._budget is not None:
            self._budget.grow(n_blocks * self._block_bytes)
        self._ranges[range_id] = lent
        insort(self._by_first, (first_block, range_id))
        self._free.add(range_id, lent)
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
        self._free.remove(range_id, lent)
        self.n_blocks -= lent.n_blocks
        del self._ranges[range_id]
        self._by_first.remove((lent.first, range_id))
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
        self._pick(moves.values())
        for old, new in moves.items():
            if self.cache is not None:
                self.cache.move(old, new)
                self._n_refs[new] = self._n_refs.pop(old)
        self._count_used(list(moves.values()), 1)
        self._free.give(list(reversed(used)))
        self._count_used(used, -1)
        return moves

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
                range_id = self.range_of(block)
                if range_id is not None:
                    self._ranges[range_id].n_used += sign
                    self.n_lent_used += sign
        if self._budget is not None:
            n_bytes = len(blocks) * self._block_bytes
            self._budget.take(n_bytes) if sign > 0 else self._budget.give(n_bytes)
