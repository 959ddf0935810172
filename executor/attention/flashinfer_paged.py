"""Decode attention by FlashInfer 0.6.13, where it is installed: what the Triton kernels are measured against.

Its pages are our blocks seen for one layer, a strided view: K and V may have any strides
as long as both have the same. Source: flashinfer/data/csrc/batch_decode.cu, 0.6.13.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from executor.attention.triton_paged import TritonKernels
from executor.models.rotary import Rotary
from executor.models.spec import DecoderSpec
from executor.models.step import StepInput

WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer recommends for its split-K results."""


class FlashInferKernels:
    """Decodes by FlashInfer, everything else by Triton.

    ``plan`` reads contexts and tables back to the host, so it waits for the device once a
    step; how contexts are split follows from their lengths alone.

    Several query heads of a KV head go through its tensor-core kernels.

    Raises:
        ImportError: FlashInfer is not installed.
    """

    def __init__(self, spec: DecoderSpec, block_tokens: int, device: torch.device) -> None:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper  # pyright: ignore[reportMissingImports] - an extra

        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        grouped = spec.shape.n_heads > spec.shape.n_kv_heads
        self._decode: Any = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=grouped)
        self._spec, self._block_tokens = spec, block_tokens
        self._others = TritonKernels()

    def plan(self, step: StepInput) -> None:
        """Tell FlashInfer the pages of each decode."""
        shape, block_tokens, contexts = self._spec.shape, self._block_tokens, step.contexts.cpu()
        n_pages = (contexts + block_tokens - 1) // block_tokens
        ends = torch.cat((torch.zeros(1, dtype=torch.int32), n_pages.cumsum(0, dtype=torch.int32)))
        used = torch.arange(step.block_tables.shape[1]) < n_pages[:, None]
        self._decode.plan(
            ends,
            step.block_tables.cpu()[used].to(step.contexts.device),
            torch.where(contexts > 0, contexts - (n_pages - 1) * block_tokens, 0).int(),
            shape.n_heads,
            shape.n_kv_heads,
            shape.head_dim,
            block_tokens,
            q_data_type=self._spec.dtype,
            kv_data_type=self._spec.dtype,
            sm_scale=1 / math.sqrt(shape.head_dim),
        )

    def store(self, qkv: Tensor, kv: Tensor, layer: int, step: StepInput, rotary: Rotary | None) -> Tensor:
        """See ``AttentionKernels``."""
        return self._others.store(qkv, kv, layer, step, rotary)

    def decode(self, query: Tensor, kv: Tensor, layer: int, step: StepInput) -> Tensor:  # noqa: ARG002 - as planned
        """See ``AttentionKernels``; ``step`` is the one last planned, and a captured graph holds for it alone."""
        return self._decode.run(query.contiguous(), (kv[:, layer, 0], kv[:, layer, 1]))
