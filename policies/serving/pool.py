"""What the engine and a policy ask of a pool of KV blocks, whichever version of vLLM it follows."""

from __future__ import annotations

from typing import Protocol

from policies.serving.blocks import RangeId
from policies.serving.free_blocks import LentRange


class Pool(Protocol):
    """The KV blocks of one model: its own, ``0..n_base - 1``, and those in ranges that it has borrowed."""

    n_base: int
    n_blocks: int

    @property
    def n_free(self) -> int:
        """Blocks that can be taken now."""
        ...

    @property
    def n_used(self) -> int:
        """Blocks in use."""
        ...

    @property
    def n_lent_used(self) -> int:
        """Of these, blocks in lent ranges."""
        ...

    @property
    def n_base_used(self) -> int:
        """Of these, blocks of the model's own."""
        ...

    @property
    def n_base_free(self) -> int:
        """Blocks of the model's own that are not in use."""
        ...

    def free_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken."""
        ...

    def lent_range(self, range_id: RangeId) -> LentRange:
        """A lent range as it is now, and goes on to be until it is returned. Read only."""
        ...

    def n_referenced(self, range_id: RangeId) -> int:
        """Blocks of a lent range that are in use."""
        ...

    def range_of(self, block: int) -> RangeId | None:
        """The lent range that a block lies in, ``None`` for the model's own."""
        ...

    def add_range(self, range_id: RangeId, first_block: int, n_blocks: int) -> None:
        """Borrow blocks ``first_block..first_block + n_blocks - 1``.

        Raises:
            ValueError: the range is there already, or overlaps the base or another range.
        """
        ...

    def remove_range(self, range_id: RangeId) -> int:
        """Return a range; how many cached blocks were evicted with it.

        Raises:
            HbmOverdrawn: a block in it is in use; nothing was changed.
        """
        ...
