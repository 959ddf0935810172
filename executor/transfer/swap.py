"""KV blocks that wait in host memory while their sequence is swapped out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from torch import Tensor

from executor.transfer.streams import Mark, Streams


class SwapSpace(Generic[Mark]):
    """Host memory for the swapped KV blocks of one model. The computation waits for every copy, as in vLLM 0.7.3.

    Args:
        kv: the KV range, (n_block_ids, block_bytes) uint8, on the device.
        host: (n_host_blocks, block_bytes) uint8, pinned.
    """

    def __init__(self, kv: Tensor, host: Tensor, streams: Streams[Mark]) -> None:
        self._kv, self._host, self._streams = kv, host, streams
        self._free = list(range(host.shape[0]))

    def save(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks to host memory, behind all that was computed so far; where they are."""
        places = [self._free.pop() for _ in blocks]
        after = self._streams.mark()
        marks = [
            self._streams.save(self._host[place], self._kv[block], after)
            for place, block in zip(places, blocks, strict=True)
        ]
        self._hold(marks)
        return places

    def restore(self, places: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy back into blocks, behind all that was computed so far, and free the places."""
        self._copy_back(places, blocks)

    def discard(self, places: Sequence[int]) -> None:
        """Free places whose content nobody will want."""
        self._free.extend(places)

    def _copy_back(self, places: Sequence[int], blocks: Sequence[int]) -> None:
        after = self._streams.mark()
        marks = [
            self._streams.fetch(self._kv[block], self._host[place], after)
            for place, block in zip(places, blocks, strict=True)
        ]
        self._hold(marks)
        self._free.extend(places)

    def _hold(self, marks: Sequence[Mark]) -> None:
        for mark in marks[-1:]:  # one direction is one queue: the last is the end of all
            self._streams.hold(mark)
