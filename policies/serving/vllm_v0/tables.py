"""Block tables: which blocks hold a sequence's tokens, on the device or swapped out to the host.

Source: vLLM 0.7.3, core/block_manager.py and core/block/block_table.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from policies.serving.blocks import BlockPool, RangeId
from policies.serving.prefix_cache import Content, Histories
from policies.serving.sequence import Sequence
from policies.serving.vllm_v0.settings import V0Settings


class Tables:
    """The block tables of one model's sequences.

    The watermark and the tests for what can never fit go by the model's own blocks,
    whatever has been lent on top.
    """

    def __init__(self, settings: V0Settings, pool: BlockPool) -> None:
        self.pool = pool
        self._host = BlockPool(settings.n_cpu_blocks, caching=settings.prefix_caching)
        self._block_tokens = settings.block_tokens
        self._n_watermark = int(settings.watermark * pool.n_base)
        self._cache = pool.cache
        self._histories = Histories()
        self._contents: dict[int, Content] = {}
        self._holders: dict[int, Sequence] = {}
        self._on_host: dict[int, list[int]] = {}

    @property
    def caches(self) -> bool:
        """Whether full blocks are kept by their content."""
        return self._cache is not None

    # Admission: all blocks of the prompt at once, cached ones included.

    def n_blocks(self, n_tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-n_tokens // self._block_tokens)

    def can_never_admit(self, n_blocks: int) -> bool:
        """Whether a sequence with so many blocks would not fit even into an empty pool."""
        return self.pool.n_base - n_blocks < self._n_watermark

    def n_missing_to_admit(self, n_blocks: int) -> int:
        """Blocks that would have to become free before one that needs so many, 0 or less if none."""
        return n_blocks + self._n_watermark - self.pool.n_free

    def n_cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence whose K and V are there, a whole number of blocks.

        Searched for at the first attempt to admit it and not again, whatever happens to
        those blocks before it is admitted. It is a binary search: behind a gap it may
        find more or fewer than a walk would (both as in vLLM).
        """
        cache = self._cache
        if cache is None:
            return 0
        if seq.n_cached is None:
            content, size = self._content(seq), self._block_tokens
            ends = range(size, seq.n_tokens + 1, size)
            n_blocks = bisect_left(ends, True, key=lambda end: not cache.is_computed(content.key(end)))
            seq.n_cached = n_blocks * size
        return seq.n_cached

    def admit(self, seq: Sequence, n_tokens: int) -> None:
        """Give the sequence blocks for all of its ``n_tokens`` tokens."""
        seq.n_slots = n_tokens
        seq.blocks = self._place(seq, n_tokens, self.pool)
        self._holders[seq.request.request_id] = seq

    # Growth: one token a decode.

    def n_touched(self, seq: Sequence) -> int:
        """Blocks that must be free before the sequence goes on: 1 for a decode, even with room in its last."""
        n_tokens, n_slots = seq.lengths()
        return 1 if n_slots < n_tokens or n_slots % self._block_tokens else 0

    def append(self, seq: Sequence) -> None:
        """Give its new token a slot."""
        slot = seq.n_slots
        self.append_at(seq, slot)
        seq.n_slots = slot + 1

    def append_at(self, seq: Sequence, slot: int) -> None:
        """Take a block if ``slot`` begins one; key the block if ``slot`` ends one."""
        if slot % self._block_tokens == 0:
            seq.blocks += self.pool.take(1)
        end = slot + 1
        if self._cache is not None and end % self._block_tokens == 0:
            seq.blocks[-1] = self.pool.complete(seq.blocks[-1], self._content(seq).key(end), end)

    def begin_blocks(self, seqs: list[Sequence]) -> None:
        """Give each in turn a block, as many times as it is named."""
        for seq, block in zip(seqs, self.pool.take(len(seqs)), strict=True):
            seq.blocks.append(block)

    def composed(self, seqs: Iterable[Sequence], now_ns: int) -> None:
        """A step with these sequences was composed: their blocks count as computed and as used now."""
        if self._cache is None:
            return
        for seq in seqs:
            seq.last_composed_ns = now_ns
        self._cache.settle()

    # Release.

    def free(self, seq: Sequence) -> None:
        """Give back its blocks; cached ones keep their content."""
        if self._cache is not None:
            self._cache.access(seq.blocks, seq.last_composed_ns)
        self._release(seq)
        seq.n_slots = 0
        seq.n_cached = None

    def forget(self, seq: Sequence) -> None:
        """The sequence will not come back."""
        self._contents.pop(seq.request.request_id, None)

    # Swapping.

    def swap_out(self, seq: Sequence) -> int:
        """Move a sequence to host memory; returns its blocks.

        Raises:
            ValueError: the host has not enough blocks (vLLM aborts).
        """
        n_needed = self._n_full_touched(seq, self._host) + self.n_touched(seq)
        if n_needed > self._host.n_free:
            raise ValueError(
                f"n_cpu_blocks={self._host.n_blocks}: request {seq.request.request_id} needs {n_needed} to be swapped "
                f"out and {self._host.n_free} are free; give more or preempt by recompute"
            )
        n_blocks = len(seq.blocks)
        self._release(seq)
        self._on_host[seq.request.request_id] = self._place(seq, seq.n_slots, self._host)
        return n_blocks

    def can_never_return(self, seq: Sequence) -> bool:
        """Whether a swapped sequence would not fit even into an empty pool."""
        return self.pool.n_base < self._n_to_return(seq)

    def n_missing_to_return(self, seq: Sequence) -> int:
        """Blocks that would have to become free before it can be swapped in, 0 or less if none."""
        return self._n_to_return(seq) + self._n_watermark - self.pool.n_free

    def swap_in(self, seq: Sequence) -> int:
        """Move a sequence back from host memory; returns its blocks."""
        self._host.release(self._on_host.pop(seq.request.request_id))
        seq.blocks = self._place(seq, seq.n_slots, self.pool)
        self._holders[seq.request.request_id] = seq
        return len(seq.blocks)

    def free_on_host(self, seq: Sequence) -> None:
        """Give back the host blocks of a swapped sequence that will be recomputed."""
        self._host.release(self._on_host.pop(seq.request.request_id))
        seq.n_slots = 0
        seq.n_cached = None

    # Lent ranges.

    def vacate(self, range_id: RangeId) -> list[tuple[int, int]]:
        """Move every referenced block out of a lent range; returns (from, to) in order.

        Raises:
            HbmOverdrawn: not enough free blocks elsewhere; nothing was changed.
        """
        moves = self.pool.move_out(range_id)
        for seq in self._holders.values() if moves else ():
            seq.blocks = [moves.get(block, block) for block in seq.blocks]
        return list(moves.items())

    def _content(self, seq: Sequence) -> Content:
        content = self._contents.get(seq.request.request_id)
        if content is None:
            content = self._contents[seq.request.request_id] = Content(seq.request, self._histories)
        return content

    def _place(self, seq: Sequence, n_slots: int, pool: BlockPool) -> list[int]:
        """Blocks of a pool for all of a sequence's slots."""
        size = self._block_tokens
        if pool.cache is None:
            return pool.take(-(-n_slots // size))
        content = self._content(seq)
        blocks = [pool.obtain(content.key(end), end) for end in range(size, n_slots + 1, size)]
        return blocks + pool.take(1) if n_slots % size else blocks

    def _release(self, seq: Sequence) -> None:
        self.pool.release(seq.blocks)
        seq.blocks = []
        del self._holders[seq.request.request_id]

    def _n_to_return(self, seq: Sequence) -> int:
        return self._n_full_touched(seq, self.pool) + self.n_touched(seq)

    def _n_full_touched(self, seq: Sequence, pool: BlockPool) -> int:
        """Free blocks of a pool that a sequence's full blocks would use; its last, partly filled one is not counted."""
        cache, size = pool.cache, self._block_tokens
        if cache is None:
            return seq.n_slots // size
        content = self._content(seq)
        found = [cache.find(content.key(end)) for end in range(size, seq.n_slots + 1, size)]
        return sum(block is None or cache.is_idle(block) for block in found)
