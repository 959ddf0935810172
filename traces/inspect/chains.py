"""Conversations that a trace does not name, inferred from the blocks that its prompts share.

A request continues the latest one that had the deepest block which it finds again, if it has
all full blocks of that one, more than the first block (a system prompt that all may share),
and nothing else has continued it. Real conversations are at least as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.inspect.lengths import LengthStatistics
from traces.inspect.prefixes import Block

MS = 10**6


@dataclass(slots=True)
class _Link:
    """A request that may be continued: its full blocks, its place in its chain, when it was."""

    n_full: int
    length: int
    time_ns: int | None
    is_continued: bool = False


class ChainStatistics:
    """Requests in the order of the file; what is kept is who had each block last."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._owners: dict[str, _Link] = {}
        self._lengths_ended: dict[int, int] = {}
        self._gaps_ms = LengthStatistics()

    def add(self, blocks: Sequence[Block], n_prompt: int, time_ns: int | None) -> None:
        """Take the next request."""
        owners = self._owners
        n_found = next((n for n, (name, _) in enumerate(blocks) if name not in owners), len(blocks))
        before = owners[blocks[n_found - 1][0]] if n_found > 1 else None
        length = 1
        if before is not None and 1 <= before.n_full <= n_found and not before.is_continued:
            before.is_continued = True
            length = before.length + 1
            self._end(before.length, -1)
            if time_ns is not None and before.time_ns is not None and time_ns >= before.time_ns:
                self._gaps_ms.add((time_ns - before.time_ns) // MS)
        self._end(length, 1)
        link = _Link(n_prompt // self._block_tokens, length, time_ns)
        for name, _ in blocks:
            owners[name] = link

    def _end(self, length: int, n: int) -> None:
        self._lengths_ended[length] = self._lengths_ended.get(length, 0) + n

    def summary(self) -> dict[str, object]:
        """The figures, by name; times in seconds."""
        lengths = LengthStatistics()
        for length, n in self._lengths_ended.items():
            lengths.add(length, n)
        n_chains = sum(self._lengths_ended.values())
        return {
            "chains": n_chains,
            "single_turn_share": self._lengths_ended.get(1, 0) / n_chains if n_chains else None,
            "turns_per_chain": lengths.summary(),
            "start_to_start_s": self._gaps_ms.summary(scale=1e-3),
        }
