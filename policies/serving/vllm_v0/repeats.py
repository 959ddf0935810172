"""Decode steps that are alike: how many there will be, and their blocks in the order of single steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from policies.serving.sequence import Sequence
from policies.serving.vllm_v0.tables import Tables


def n_appends_without_shortage(seqs: Seq[Sequence], block_tokens: int, n_free: int) -> int:
    """How many more tokens each sequence can get with a free block left for every one of them.

    vLLM wants one free block for each decode, even if its last block has room: all but
    one of the free blocks may be used up. A sequence takes one every ``block_tokens``
    tokens, so only the residues of the lengths matter.
    """
    if n_free < 1:
        return 0
    rounds, n_left = divmod(n_free - 1, len(seqs))
    rooms = Counter(-seq.n_slots % block_tokens for seq in seqs)
    n_appends = rounds * block_tokens
    while rooms[n_appends % block_tokens] <= n_left:
        n_left -= rooms[n_appends % block_tokens]
        n_appends += 1
    return n_appends


def append_repeatedly(seqs: Seq[Sequence], n_appends: int, block_tokens: int, tables: Tables) -> None:
    """Give every sequence ``n_appends`` slots, token by token and each time in their order.

    Only a token that begins a block (or ends one, for the prefix cache) does more than count.
    """
    by_room: list[list[Sequence]] = [[] for _ in range(block_tokens)]
    for seq in seqs:
        room = -seq.n_slots % block_tokens
        for nth in {room, (room - 1) % block_tokens} if tables.caches else (room,):
            by_room[nth].append(seq)
    turns = ((seq, nth) for nth in range(n_appends) for seq in by_room[nth % block_tokens])
    if tables.caches:
        for seq, nth in turns:
            tables.append_at(seq, seq.n_slots + nth)
    else:
        tables.begin_blocks([seq for seq, _ in turns])
    for seq in seqs:
        seq.n_slots += n_appends
