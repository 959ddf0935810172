"""Which block ids a model's KV cache has: its own first, then one range per home it may borrow.

A block id is an address: the KV cache of a model is one address range, block after
block. It spans the base blocks and a place for every home of every model, each starting
at a multiple of lcm(page, block), so that no block straddles two ranges::

    | base | model 0: home 0 | home 1 | ... | model 1: home 0 | ...

A place has room for the whole home, since a GPU maps physical memory whole or not at all
(cuMemMap of fewer bytes than a handle has: CUDA_ERROR_NOT_SUPPORTED; an H200, driver 580.159.04).
What is left at the end of a home (less than one block) is lost while it is lent, and block
ids between its last whole block and the next place are never used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from policies.types import HardwareProfile, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Block ids of one borrower.

    Attributes:
        n_base_blocks: blocks 0..n_base_blocks - 1 are its own.
        first_blocks: for each lender the id at which the range of its home 0 starts.
        strides: for each lender the ids from one home's range to the next.
        blocks_per_home: for each lender the whole blocks that one of its homes holds.
        first_host_block: the id behind all of these: blocks in host memory follow, unit by unit.
    """

    n_base_blocks: int
    first_blocks: tuple[int, ...]
    strides: tuple[int, ...]
    blocks_per_home: tuple[int, ...]
    first_host_block: int

    def range_of(self, lender: int, home: int) -> tuple[int, int]:
        """First block id and number of blocks of a home."""
        return self.first_blocks[lender] + home * self.strides[lender], self.blocks_per_home[lender]


def home_pages(shape: ModelShape, hardware: HardwareProfile) -> int:
    """Pages that one layer of the model occupies."""
    return -(-shape.layer_bytes // hardware.page_bytes)


def lay_out(
    borrower: ModelShape,
    models: Sequence[ModelShape],
    hardware: HardwareProfile,
    *,
    block_tokens: int,
    n_base_blocks: int,
    lenders: Sequence[int] | None = None,
) -> KvLayout:
    """Give every home of every lender its place in the borrower's KV address range.

    Args:
        lenders: of which models it may borrow, by index; ``None``: of all. The others' homes hold no block of it.
    """
    block_bytes = borrower.block_bytes(block_tokens)
    alignment_blocks = lcm(hardware.page_bytes, block_bytes) // block_bytes
    cursor = _round_up(n_base_blocks, alignment_blocks)
    firsts: list[int] = []
    strides: list[int] = []
    fits: list[int] = []
    for index, lender in enumerate(models):
        may_lend = lenders is None or index in lenders
        home_bytes = home_pages(lender, hardware) * hardware.page_bytes if may_lend else 0
        stride = _round_up(-(-home_bytes // block_bytes), alignment_blocks)
        firsts.append(cursor)
        strides.append(stride)
        fits.append(home_bytes // block_bytes)
        cursor += stride * lender.n_layers
    return KvLayout(
        n_base_blocks=n_base_blocks,
        first_blocks=tuple(firsts),
        strides=tuple(strides),
        blocks_per_home=tuple(fits),
        first_host_block=cursor,
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
