"""The reference: one expert after the other by plain PyTorch, on a CPU and in any data type."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from executor.experts.packs import UNIT_BYTES, ExpertTable
from executor.memory.tensors import tensor_over
from executor.models.moe import Routed
from executor.models.spec import DecoderSpec, ExpertSpec


class LoopKernels:
    """A loop over the experts that have rows. It reads counts and addresses on the host."""

    def norm_heads(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor, spec: DecoderSpec) -> None:
        """See ``ExpertKernels``."""
        n_heads, n_kv_heads, head_dim = spec.shape.n_heads, spec.shape.n_kv_heads, spec.shape.head_dim
        heads = qkv.unflatten(1, (-1, head_dim))[:, : n_heads + n_kv_heads]
        normed = functional.rms_norm(heads, (head_dim,), None, spec.norm_eps)
        torch.mul(normed[:, :n_heads], query_norm, out=heads[:, :n_heads])
        torch.mul(normed[:, n_heads:], key_norm, out=heads[:, n_heads:])

    def route(self, normed: Tensor, logits: Tensor, spec: ExpertSpec) -> Routed:
        """See ``ExpertKernels``."""
        odds = functional.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        weights, chosen = odds.topk(spec.n_active, dim=-1)
        if spec.normalises:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        ids, order = chosen.flatten().sort(stable=True)
        starts = torch.searchsorted(ids, torch.arange(spec.n_experts + 1, device=ids.device))
        return Routed(normed=normed, weights=weights.to(normed.dtype), order=order, starts=starts)

    def run(self, hidden: Tensor, routed: Routed, table: ExpertTable, spec: ExpertSpec) -> None:
        """See ``ExpertKernels``."""
        said = torch.empty(routed.order.shape[0], hidden.shape[1], dtype=hidden.dtype)
        scales = routed.weights.flatten()
        starts, (gate_ups, downs) = routed.starts.tolist(), table.offsets.tolist()
        for expert in range(spec.n_experts):
            mine = routed.order[starts[expert] : starts[expert + 1]]
            if not mine.numel():
                continue
            gate_up = _weights(table, gate_ups[expert], 2 * spec.ffn, hidden.shape[1])
            down = _weights(table, downs[expert], hidden.shape[1], spec.ffn)
            gate, up = functional.linear(routed.normed[mine // spec.n_active], gate_up).chunk(2, dim=1)
            said[mine] = functional.linear(functional.silu(gate) * up, down) * scales[mine, None]
        hidden += said.view(hidden.shape[0], spec.n_active, -1).sum(dim=1)


def _weights(table: ExpertTable, offset: int, n_rows: int, n_columns: int) -> Tensor:
    """A matrix of an expert, wherever it is."""
    n_bytes = n_rows * n_columns * table.base.itemsize
    there = tensor_over(table.base.data_ptr() + offset * UNIT_BYTES, n_bytes, "cpu")
    return there.view(table.base.dtype).view(n_rows, n_columns)
