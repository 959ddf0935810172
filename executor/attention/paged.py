"""Attention of one step over paged KV: store what is new, then prefills together, and decodes together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from executor.attention.kernels import AttentionKernels
from executor.models.rotary import Rotary
from executor.models.step import StepInput


@dataclass(frozen=True, slots=True)
class PagedAttention:
    """Attention as a layer sees it.

    Args:
        rotary: angles by position, ``None`` where the model has learned positions.
    """

    kernels: AttentionKernels
    rotary: Rotary | None

    def attend(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """Store K and V of all rows, then attend from each row to its context.

        Args:
            qkv: (n_rows, (n_heads + 2 * n_kv_heads) * head_dim); may be overwritten.
            kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim).

        Returns:
            (n_rows, n_heads * head_dim).
        """
        query = self.kernels.store(qkv, kv, layer, step, self.rotary)
        if step.prefills is None:
            return self.kernels.decode(query, kv, layer, step).flatten(1)
        attended = self.kernels.prefill(query, kv, layer, step)
        if step.n_decodes:
            attended[: step.n_decodes] = self.kernels.decode(query[: step.n_decodes], kv, layer, step)
        return attended.flatten(1)
