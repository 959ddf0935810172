"""Free blocks without content, and the order in which they are taken."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


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

    @property
    def n_free(self) -> int:
        """How many there are."""
        ...

    def __iter__(self) -> Iterator[int]: ...

    def take(self, n_blocks: int) -> list[int]:
        """Take as many, which are there."""
        ...

    def give(self, blocks: Sequence[int]) -> None:
        """Give back blocks, the last of them to be taken first."""
        ...

    def add(self, lent: LentRange) -> None:
        """A range joins, all of it free."""
        ...

    def remove(self, lent: LentRange) -> None:
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
        self._lent: dict[int, list[int]] = {}  # by the first block of a range, in the order in which they were added
        self._firsts: list[int] = []  # the same, increasing
        self.n_free = n_base

    def __iter__(self) -> Iterator[int]:
        for stack in self._stacks():
            yield from reversed(stack)

    def take(self, n_blocks: int) -> list[int]:
        """Take from the top of the base, then of each range."""
        base = self._base
        n_left = len(base) - n_blocks
        if n_left < 0:
            return self._take_from_all(n_blocks)
        self.n_free -= n_blocks
        taken = base[n_left:]
        del base[n_left:]
        taken.reverse()
        return taken

    def give(self, blocks: Sequence[int]) -> None:
        """Put each on the stack that it belongs to."""
        self.n_free += len(blocks)
        if not self._lent:
            self._base.extend(blocks)
            return
        for block in blocks:
            if block < self._n_base:
                self._base.append(block)
            else:
                self._lent[self._firsts[bisect_right(self._firsts, block) - 1]].append(block)

    def add(self, lent: LentRange) -> None:
        """Put a stack for the range behind the others."""
        self._lent[lent.first] = list(reversed(lent.blocks))
        insort(self._firsts, lent.first)
        self.n_free += lent.n_blocks

    def remove(self, lent: LentRange) -> None:
        """Drop the range's stack."""
        self.n_free -= len(self._lent.pop(lent.first))
        self._firsts.remove(lent.first)

    def pick(self, blocks: set[int]) -> None:
        """Take these out of wherever they are."""
        self.n_free -= len(blocks)
        for stack in self._stacks():
            stack[:] = [block for block in stack if block not in blocks]

    def _take_from_all(self, n_blocks: int) -> list[int]:
        assert n_blocks <= self.n_free, "the caller has seen to it that they are there"
        self.n_free -= n_blocks
        taken: list[int] = []
        for stack in self._stacks():
            n_here = min(n_blocks - len(taken), len(stack))
            if n_here:
                taken += stack[: -n_here - 1 : -1]
                del stack[-n_here:]
            if len(taken) == n_blocks:
                break
        return taken

    def _stacks(self) -> Iterator[list[int]]:
        yield self._base
        yield from self._lent.values()


class OneList:
    """vLLM's one list: given and taken at its head, lent blocks join at its tail."""

    def __init__(self, n_base: int) -> None:
        self._blocks = deque(range(n_base))

    @property
    def n_free(self) -> int:
        """How many there are."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def take(self, n_blocks: int) -> list[int]:
        """Take from the head."""
        return [self._blocks.popleft() for _ in range(n_blocks)]

    def give(self, blocks: Sequence[int]) -> None:
        """Put one after the other at the head."""
        self._blocks.extendleft(blocks)

    def add(self, lent: LentRange) -> None:
        """Append the range."""
        self._blocks.extend(lent.blocks)

    def remove(self, lent: LentRange) -> None:
        """Drop the range's blocks, wherever they are."""
        self._blocks = deque(block for block in self._blocks if block not in lent)

    def pick(self, blocks: set[int]) -> None:
        """Take these out of wherever they are."""
        self._blocks = deque(block for block in self._blocks if block not in blocks)
