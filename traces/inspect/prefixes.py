"""What a prefix cache would find again: least recently used blocks, touched from the root of each prompt.

A prompt hits its leading blocks up to the first that is not there. Then all its blocks are
touched in their order, those that are not there come in, and while there are more than the
capacity the one touched longest ago goes. Outputs do not come in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from traces.formats import Pieces

Block = tuple[str, int]
"""(name of its content and all before it, tokens)."""


class BlockCache:
    """A cache of ``capacity`` blocks; ``None``: of all.

    Attributes:
        n_hits, n_hit_tokens, n_blocks, n_tokens: what was found of what was asked for.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.n_hits = self.n_hit_tokens = self.n_blocks = self.n_tokens = 0
        self._held: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def ask(self, blocks: Sequence[Block]) -> int:
        """Look a prompt up, then keep it; returns how many of its blocks were there."""
        held = self._held
        n_found = next((n for n, (name, _) in enumerate(blocks) if name not in held), len(blocks))
        self.n_hits += n_found
        self.n_hit_tokens += sum(n_tokens for _, n_tokens in blocks[:n_found])
        self.n_blocks += len(blocks)
        self.n_tokens += sum(n_tokens for _, n_tokens in blocks)
        for name, _ in blocks:
            held[name] = None
            if self.capacity is not None:
                held.move_to_end(name)
                if len(held) > self.capacity:
                    held.popitem(last=False)
        return n_found

    def summary(self) -> dict[str, object]:
        """The figures, by name."""
        return {
            "capacity_blocks": self.capacity,
            "block_hit_share": self.n_hits / self.n_blocks if self.n_blocks else None,
            "token_hit_share": self.n_hit_tokens / self.n_tokens if self.n_tokens else None,
        }


def blocks_of(prompt: Pieces, block_tokens: int) -> list[Block]:
    """Cut a prompt into blocks of ``block_tokens``, each named by all content up to its end."""
    chain = blake2b(digest_size=12)
    blocks: list[Block] = []
    room = block_tokens
    for stream, n_tokens in prompt:
        start = 0
        while start < n_tokens:
            taken = min(room, n_tokens - start)
            chain.update(f"{stream}|{start}|{taken};".encode())
            start, room = start + taken, room - taken
            if room == 0:
                blocks.append((chain.hexdigest(), block_tokens))
                room = block_tokens
    if room < block_tokens:
        blocks.append((chain.hexdigest(), block_tokens - room))
    return blocks
