"""Which blocks hold which content, and which of the unused ones goes first: vLLM 0.7.3's prefix cache.

Content is named, not hashed: a token is the i-th of a stream, and every piece of a prompt
starts its stream at 0, so two prefixes are equal exactly if they are the same pieces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from policies.serving.histories import Histories, History, Key, Stream
from policies.types import Request

OUTPUT = "out"
"""How the stream of a request's output begins; its number follows."""

NEVER_NS: Final = -1
"""Last access of a block that no freed sequence has left (vLLM's default)."""


class Content:
    """The names of a request's prefixes: its prompt, then its own output stream."""

    def __init__(self, request: Request, histories: Histories) -> None:
        pieces = request.prompt or ((request.request_id, request.n_prompt_tokens),)
        self._starts: list[int] = []
        self._pieces: list[tuple[History | None, Stream]] = []
        start, history = 0, None
        for stream, n_tokens in pieces:
            if n_tokens:
                self._starts.append(start)
                self._pieces.append((history, stream))
                history = histories.extend(history, stream, n_tokens)
                start += n_tokens
        self._starts.append(start)
        self._pieces.append((history, output_stream(request)))

    def key(self, n_tokens: int) -> Key:
        """Name the first ``n_tokens`` tokens, at least one."""
        piece = bisect_left(self._starts, n_tokens) - 1
        history, stream = self._pieces[piece]
        return history, stream, n_tokens - self._starts[piece]


def output_stream(request: Request) -> str:
    """The stream of a request's output tokens, which prompts may quote."""
    return f"{OUTPUT}{request.request_id}"


def quoted_outputs(request: Request) -> Iterator[str]:
    """The output streams that a prompt quotes (any stream that is named like one)."""
    return (stream for stream, _ in request.prompt or () if stream.startswith(OUTPUT))


class PrefixCache:
    """Full blocks by content; blocks that nobody references stay until they are evicted.

    A block is *keyed* while the cache knows its content, *idle* while it is keyed and
    unreferenced, and *fresh* from when it is keyed until the step that computes it has
    been composed: a fresh block is shared, but its tokens do not count as computed.

    Source: vLLM 0.7.3, core/block/prefix_caching_block.py and core/evictor.py.
    """

    def __init__(self) -> None:
        self._block_of: dict[Key, int] = {}
        self._content: dict[int, tuple[Key, int]] = {}
        self._accessed_ns: dict[int, int] = {}
        self._idle: dict[int, tuple[int, int, int]] = {}
        self._queue: list[tuple[int, int, int]] = []
        self._fresh: set[int] = set()

    def __len__(self) -> int:
        return len(self._block_of)

    @property
    def n_idle(self) -> int:
        """Blocks that can be evicted."""
        return len(self._idle)

    def find(self, key: Key) -> int | None:
        """The block that holds this prefix's last tokens."""
        return self._block_of.get(key)

    def is_keyed(self, block: int) -> bool:
        """Whether the cache knows its content."""
        return block in self._content

    def is_idle(self, block: int) -> bool:
        """Whether it is cached and unreferenced."""
        return block in self._idle

    def is_computed(self, key: Key) -> bool:
        """Whether the K and V of this prefix's last block can be used as they are."""
        block = self._block_of.get(key)
        return block is not None and block not in self._fresh

    def publish(self, block: int, key: Key, n_tokens: int) -> None:
        """Key a referenced block that has become full; ``n_tokens`` is where it ends in its sequence."""
        self._block_of[key] = block
        self._content[block] = key, n_tokens
        self._fresh.add(block)

    def settle(self) -> None:
        """A step has been composed: what it will compute counts as computed from now on."""
        self._fresh.clear()

    def access(self, blocks: Iterable[int], now_ns: int) -> None:
        """Note when a sequence that gives up these blocks last ran."""
        for block in blocks:
            if block in self._content:
                self._accessed_ns[block] = now_ns

    def rest(self, block: int) -> None:
        """A keyed block lost its last reference."""
        entry = (self._accessed_ns.pop(block, NEVER_NS), -self._content[block][1], block)
        self._idle[block] = entry
        self._fresh.discard(block)
        heappush(self._queue, entry)
        if len(self._queue) > 2 * len(self._idle) + 64:  # most entries are out of date
            self._queue = list(self._idle.values())
            heapify(self._queue)

    def wake(self, block: int) -> None:
        """An idle block is referenced again."""
        del self._idle[block]

    def evict(self) -> int:
        """Forget the idle block that ran longest ago; of a sequence, its end first."""
        while True:
            entry = heappop(self._queue)
            if self._idle.get(entry[2]) == entry:
                self.forget(entry[2])
                return entry[2]

    def forget(self, block: int) -> None:
        """An idle block loses its content."""
        del self._idle[block]
        key, _ = self._content.pop(block)
        del self._block_of[key]

    def idle_in_order(self) -> list[int]:
        """Idle blocks, the next to be evicted first."""
        return [block for _, _, block in sorted(self._idle.values())]

    def move(self, old: int, new: int) -> None:
        """A referenced block's content was copied to another block."""
        if old not in self._content:
            return
        self._content[new] = self._content.pop(old)
        self._block_of[self._content[new][0]] = new
        if old in self._accessed_ns:
            self._accessed_ns[new] = self._accessed_ns.pop(old)
        if old in self._fresh:
            self._fresh.remove(old)
            self._fresh.add(new)
