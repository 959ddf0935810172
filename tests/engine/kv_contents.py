"""Whose K and V each block holds, as a device would know from what was computed and moved."""

from __future__ import annotations

from policies.backend import Batch
from policies.memory.ops import MoveBlocks


class KvContents:
    """Blocks by (model, id): the request and the position in its table whose tokens were written there.

    It knows nothing of prefix caching and swapping, where blocks change hands in other ways.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._written: dict[tuple[int, int], tuple[int, int]] = {}
        self._n_seen: dict[int, int] = {}

    def run(self, model: int, batch: Batch) -> None:
        """Read what the rows have in the cache, write what they compute.

        Raises:
            AssertionError: a block holds something else than what will be read from it.
        """
        for seq, _ in batch.rows:
            request_id = seq.request.request_id
            n_seen = self._n_seen.get(request_id, 0)  # later blocks were taken and written in repetitions
            for index, block in enumerate(seq.blocks):
                if index < n_seen and index * self._block_tokens < seq.n_computed:
                    assert self._written.get((model, block)) == (request_id, index), f"{seq} reads block {block}"
                self._written[model, block] = request_id, index
            self._n_seen[request_id] = len(seq.blocks)

    def move(self, op: MoveBlocks) -> None:
        """Copy blocks."""
        for old, new in op.moves:
            if (op.model, old) in self._written:
                self._written[op.model, new] = self._written.pop((op.model, old))
