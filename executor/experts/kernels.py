"""What differs between devices in a layer with experts: norms of heads, routing, and the experts."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from executor.experts.packs import ExpertTable
from executor.models.moe import Routed
from executor.models.spec import DecoderSpec, ExpertSpec


class ExpertKernels(Protocol):
    """The operations of a layer with experts beside attention and dense products.

    On a GPU none of them waits for the device or looks at values on the host, so that all can be captured; the
    result of a row depends on the step alone, never on where experts lie.
    """

    def norm_heads(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor, spec: DecoderSpec) -> None:
        """Normalise the heads of Q and K, in place; rounded between division and scale, as transformers does.

        Args:
            qkv: (n_rows, (n_heads + 2 * n_kv_heads) * head_dim).
            query_norm, key_norm: (head_dim,).
        """
        ...

    def route(self, normed: Tensor, logits: Tensor, spec: ExpertSpec) -> Routed:
        """Choose the likeliest experts of every row, and sort what they have to do.

        Args:
            normed: (n_rows, hidden), what the experts will read.
            logits: (n_rows, n_experts).
        """
        ...

    def run(self, hidden: Tensor, routed: Routed, table: ExpertTable, spec: ExpertSpec) -> None:
        """Add what the experts of every row say to the residual stream, in place: (n_rows, hidden)."""
        ...
