"""The ranges that a pool has borrowed: where they lie, and how much of each is in use."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from policies.serving.blocks import RangeId
from policies.serving.free_blocks import LentRange


class LentRanges:
    """Intervals of block ids above the model's own."""

    def __init__(self, n_base: int) -> None:
        self.n_used = 0
        self._n_base = n_base
        self._ranges: dict[RangeId, LentRange] = {}
        self._by_first: list[tuple[int, RangeId]] = []

    def __getitem__(self, range_id: RangeId) -> LentRange:
        return self._ranges[range_id]

    def find(self, block: int) -> RangeId | None:
        """The range that a block lies in, ``None`` for the model's own."""
        if block < self._n_base:
            return None
        return self._by_first[bisect_right(self._by_first, block, key=lambda each: each[0]) - 1][1]

    def add(self, range_id: RangeId, first_block: int, n_blocks: int) -> LentRange:
        """Note a new range.

        Raises:
            ValueError: it is there already, or overlaps the base or another.
        """
        if range_id in self._ranges or first_block < self._n_base or n_blocks < 0:
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} cannot be added")
        others = self._ranges.values()
        if any(first_block < each.first + each.n_blocks and each.first < first_block + n_blocks for each in others):
            raise ValueError(f"range {range_id} of {n_blocks} blocks from {first_block} overlaps another")
        lent = self._ranges[range_id] = LentRange(first_block, n_blocks)
        insort(self._by_first, (first_block, range_id))
        return lent

    def remove(self, range_id: RangeId) -> None:
        """Forget a range."""
        lent = self._ranges.pop(range_id)
        self._by_first.remove((lent.first, range_id))

    def count(self, blocks: Iterable[int], sign: int) -> None:
        """So many references began (1) or ended (-1): those to lent blocks are counted."""
        if not self._ranges:
            return
        for block in blocks:
            range_id = self.find(block)
            if range_id is not None:
                self._ranges[range_id].n_used += sign
                self.n_used += sign
