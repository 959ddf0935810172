"""What can be set of vLLM 0.15.1's scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Settings:
    """The settings under vLLM's own names (``block_tokens`` is its ``block_size``) but for the last four.

    Attributes:
        max_num_batched_tokens: tokens that one step may compute; cached ones do not count.
        max_model_len: a sequence of this length ends.
        max_num_seqs: sequences that may run at once.
        chunked_prefill: a prompt may be computed in pieces; without it a whole one must fit into the budget.
        async_scheduling: a step is composed while the one before it runs (vLLM's default).
        long_prefill_tokens: tokens of one prompt in a step at most, 0: any (``long_prefill_token_threshold``).
        n_state_groups: groups of state layers (gated-delta-net, Mamba) beside the attention layers; 0 for a model
            of attention layers only. With prefix caching they are kept in the mode that vLLM calls "align".
        reserve_full_isl: admit a request only if there are blocks for its whole prompt (newer versions of vLLM:
            ``scheduler_reserve_full_isl``, on by default); 0.15.1 looks at its first piece only.
        asks_before_evicting: ask for relief before cached blocks are evicted (VAMP); vLLM just takes them.

    Raises:
        ValueError: a size is not positive, or a whole prompt might not fit into the budget.
    """

    max_num_batched_tokens: int
    max_model_len: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    chunked_prefill: bool = True
    prefix_caching: bool = True
    async_scheduling: bool = True
    long_prefill_tokens: int = 0
    n_state_groups: int = 0
    reserve_full_isl: bool = False
    asks_before_evicting: bool = False

    def __post_init__(self) -> None:
        for field in ("max_num_batched_tokens", "max_model_len", "block_tokens", "max_num_seqs"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")
        for field in ("long_prefill_tokens", "n_state_groups"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}={getattr(self, field)} must not be negative")
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_model_len={self.max_model_len}: "
                "without chunked prefill the longest prompt must fit into one step"
            )

    @property
    def aligns_states(self) -> bool:
        """Whether prompts are cut where a state is kept: at block boundaries."""
        return self.prefix_caching and self.n_state_groups > 0

    @property
    def state_block_tokens(self) -> int:
        """Tokens behind one block of a state group; without caching one block serves a whole request."""
        return self.block_tokens if self.prefix_caching else self.max_model_len
