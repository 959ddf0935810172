"""What an allocation lacks, and what could be given up for it: what VAMP decides from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Victim:
    """A cached block that nobody references.

    Attributes:
        age_steps: scheduler steps since it was last used.
        is_reused: whether a later request will hit it, which no server knows: for the oracle alone.
    """

    block: int
    age_steps: int
    is_reused: bool | None = None


@dataclass(frozen=True, slots=True)
class Preemptable:
    """A running request that could be stopped now; ``n_partial_tokens`` are in its last block, if that is not full."""

    request_id: int
    n_partial_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """An allocation needs ``n_blocks`` more free blocks without content than there are.

    Attributes:
        block_tokens, block_bytes: of one block, all layers together.
        victims: the first ``n_blocks`` blocks to be evicted, in order; fewer if there are no more.
        preemptable: requests that could be stopped, the newest first, at most ``n_blocks``.
        n_steps_left: the fewest tokens that any running request may still produce as declared; ``None``: none runs.
        hit_rate: share of looked-up prompt tokens found in the cache lately, 0..1.
        queue_ns: time that requests waited lately before they ran, ``None`` until measured.
        prefill_token_ns: device time of a prompt token, ``None`` until measured.
        shard_fetch_ns: time of one expert shard on an idle link.
    """

    n_blocks: int
    block_tokens: int
    block_bytes: int
    victims: tuple[Victim, ...] = ()
    preemptable: tuple[Preemptable, ...] = ()
    n_steps_left: int | None = None
    hit_rate: float = 0.0
    queue_ns: int | None = None
    prefill_token_ns: float | None = None
    shard_fetch_ns: int = 0

    def __post_init__(self) -> None:
        if self.n_blocks < 1:
            raise ValueError(f"a shortage of {self.n_blocks} blocks is none")
