"""Hybrid models: blocks of recurrent state (gated-delta-net, Mamba) beside those of attention.

A state sums up everything before it, so a request needs its newest one only. vLLM keeps the states of a group
in a list with the attention's indices ("align" mode): entry ``i`` is the state at the end of block ``i``, most
entries are placeholders. Old ones are released as the request goes on, and may be hit while they are cached.

Source: vLLM 0.15.1, v1/core/single_type_kv_cache_manager.py, ``MambaManager``.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from policies.serving.vllm_v1.pool import PLACEHOLDER


@dataclass(slots=True)
class StateBlocks:
    """The blocks of one request in one state group.

    Attributes:
        before: index of the state from which the one under way began, ``None`` if it began from nothing.
    """

    block_tokens: int
    blocks: list[int] = field(default_factory=list[int])
    before: int | None = None

    def resume(self, block: int, index: int) -> None:
        """Begin with a state that was hit."""
        self.blocks = [PLACEHOLDER] * index + [block]

    def needs_block(self, n_tokens: int, n_hits: int) -> bool:
        """Whether so many tokens end in a block that is not there, with so many hits in front."""
        return -(-n_tokens // self.block_tokens) > len(self.blocks) + n_hits

    def begin(self, block: int, n_tokens: int) -> None:
        """Take a block for the state at the end of so many tokens."""
        if self.blocks:
            self.before = len(self.blocks) - 1
        n_before = -(-n_tokens // self.block_tokens) - 1
        self.blocks += [PLACEHOLDER] * (n_before - len(self.blocks))
        self.blocks.append(block)

    def drop_outlived(self, n_computed: int) -> Seq[int]:
        """Give up the states that no token behind ``n_computed`` reads; in the order of their release."""
        blocks, dropped = self.blocks, list[int]()
        index = min((n_computed - 1) // self.block_tokens, len(blocks)) - 1
        while index >= 0 and blocks[index] != PLACEHOLDER:
            dropped.append(blocks[index])
            blocks[index] = PLACEHOLDER
            index -= 1
        before = self.before
        if before is not None and before < -(-n_computed // self.block_tokens) - 1 and blocks[before] != PLACEHOLDER:
            dropped.append(blocks[before])
            blocks[before] = PLACEHOLDER
        return dropped
