"""Decode steps that are alike: how many there will be, and their blocks in the order of single steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from policies.serving.sequence import Sequence


def n_decodes_without_shortage(seqs: Seq[Sequence], block_tokens: int, n_free: int) -> int:
    """How many more tokens each sequence can get from so many free blocks.

    A sequence takes a block every ``block_tokens`` tokens, so only the residues of the lengths matter.
    """
    rounds, n_left = divmod(n_free, len(seqs))
    rooms = Counter(-seq.n_slots % block_tokens for seq in seqs)
    n_more = rounds * block_tokens
    while rooms[n_more % block_tokens] <= n_left:
        n_left -= rooms[n_more % block_tokens]
        n_more += 1
    return n_more


def n_decodes_within_blocks(seqs: Seq[Sequence], block_tokens: int) -> int:
    """How many more tokens each sequence of a hybrid model can get before one takes or releases any block.

    It takes blocks with the first token of a block and releases the state before it with the second.
    """
    return min(
        -seq.n_slots % block_tokens if seq.n_slots % block_tokens > 1 else 0  # 0: takes next, 1: releases next
        for seq in seqs
    )


def in_order_of_taking(seqs: Seq[Sequence], block_tokens: int, n_more: int) -> list[Sequence]:
    """Who takes a block while each gets ``n_more`` tokens, token by token and each time in their order."""
    by_room: list[list[Sequence]] = [[] for _ in range(block_tokens)]
    for seq in seqs:
        by_room[-seq.n_slots % block_tokens].append(seq)
    return [seq for nth in range(n_more) for seq in by_room[nth % block_tokens]]
