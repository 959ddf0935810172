"""What can be set of vLLM 0.7.3's scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class V0Settings:
    """The settings under vLLM's own names (``block_tokens`` is its ``block_size``).

    Attributes:
        max_num_batched_tokens: tokens that one step may compute; cached ones do not count.
        max_model_len: a sequence longer than this is cut off.
        max_num_seqs: sequences that may run at once.
        chunked_prefill: prompts are computed in pieces, beside decodes.
        preemption: what becomes of a victim; ``auto`` recomputes (vLLM swaps only sequence groups, of which
            there are none here).
        async_output: the stop checks of a step come after the next one was composed (vLLM's default on CUDA).
        watermark: share of the blocks that an admission leaves free.
        n_cpu_blocks: blocks of host memory for victims that are swapped out.

    Raises:
        ValueError: a size is not positive, or the watermark is not a share.
    """

    max_num_batched_tokens: int
    max_model_len: int
    block_tokens: int = 16
    max_num_seqs: int = 256
    chunked_prefill: bool = False
    preemption: Literal["auto", "recompute", "swap"] = "auto"
    prefix_caching: bool = False
    async_output: bool = True
    watermark: float = 0.01
    n_cpu_blocks: int = 0

    def __post_init__(self) -> None:
        for field in ("max_num_batched_tokens", "max_model_len", "block_tokens", "max_num_seqs"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")
        if self.n_cpu_blocks < 0:
            raise ValueError(f"n_cpu_blocks={self.n_cpu_blocks} must not be negative")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark={self.watermark} is outside 0..1")

    @property
    def prompt_limit(self) -> int:
        """The longest prompt (with what a preempted request has produced) that is admitted."""
        if self.chunked_prefill:
            return self.max_model_len
        return min(self.max_model_len, self.max_num_batched_tokens)
