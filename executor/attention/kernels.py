"""What differs between devices in attention over paged KV: storing new tokens, decoding, and prefilling."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from executor.models.rotary import Rotary
from executor.models.step import StepInput


class AttentionKernels(Protocol):
    """The operations on the KV cache that steps run in every layer.

    ``kv`` is ``(n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim)``, contiguous, and may
    span addresses that are not mapped. On a GPU none of them waits for the
    device or looks at values on the host, so that all can be captured; the result of a row
    depends on the step alone, never on an address or on the order in which threads finish.
    """

    def store(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput, rotary: Rotary | None) -> Tensor:
        """Put K and V of every row into its slot, turned by its position where the model is rotary.

        Args:
            qkv: (n_rows, (n_heads + 2 * n_kv_heads) * head_dim): Q, K, V of each token; may be overwritten.

        Returns:
            Q, turned likewise: (n_rows, n_heads, head_dim), perhaps a view of ``qkv``.
        """
        ...

    def decode(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """Attend from one token of each decode to its whole context.

        Args:
            query: (n_decodes, n_heads, head_dim); rows may be strided.

        Returns:
            (n_decodes, n_heads, head_dim), contiguous; zeros for padding.
        """
        ...

    def prefill(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:
        """Attend from all new tokens of each prefill to what they see; K and V of all are stored.

        Args:
            query: (n_rows, n_heads, head_dim); rows may be strided.

        Returns:
            (n_rows, n_heads, head_dim), contiguous; anything for rows of decodes and padding.
        """
        ...
