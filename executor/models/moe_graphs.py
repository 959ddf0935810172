"""Decode steps of a mixture of experts as CUDA graphs: two for each layer and bucket, between which a stream can wait.

Where experts lie is in tables that the graphs read, so that a change of the boundary changes no graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executor.experts.packs import ExpertTable
from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import greedy
from executor.models.graphs import Graphs, Key
from executor.models.moe import MoeLayer, Routed
from executor.models.moe_decoder import MoeDecoder
from executor.models.step import StepInput


class MoeGraphs:
    """The decode step of one model on one stream, in pieces that are captured when first wanted.

    Call ``warm_up`` for a bucket before anything else of it. Then, for every step: ``buffers.fill``, ``embed``,
    ``attend`` and ``experts`` for each layer in order, ``head``. Nothing waits for the device.

    Attributes:
        hidden: (max_rows, hidden), the residual stream; after ``head`` that of the last layer.
        sampled: (max_rows,) int64, the likeliest token of each row after ``head``.

    Args:
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim); never moves.
    """

    def __init__(
        self,
        decoder: MoeDecoder,
        weights: Sequence[MoeLayer],
        tables: Sequence[ExpertTable],
        buffers: DecodeBuffers,
        kv: Tensor,
        max_rows: int,
        stream: torch.cuda.Stream,
    ) -> None:
        self._decoder, self._weights, self._tables = decoder, tuple(weights), tuple(tables)
        self._buffers, self._kv, self._stream = buffers, kv, stream
        self._graphs = Graphs(stream)
        self._routed: Routed | None = None  # of the layer that is being captured: its experts read it where it is
        spec = decoder.spec
        self.n_layers = spec.shape.n_layers
        self.hidden = torch.zeros(max_rows, spec.shape.hidden, dtype=spec.dtype, device=kv.device)
        self.sampled = torch.zeros(max_rows, dtype=torch.int64, device=kv.device)

    @property
    def n_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    @torch.inference_mode()
    def warm_up(self, bucket: int) -> None:
        """Run each piece once on padding, so that every kernel is compiled; capture all; clear the buffers."""
        with torch.cuda.stream(self._stream):
            step = self._buffers.clear(bucket)
            self._embed(step)
            self._attend(step, 0)
            self._experts(step, 0)
            self._head(step)
        self._stream.synchronize()
        self.embed(bucket)
        for layer in range(self.n_layers):
            self.attend(bucket, layer)
            self.experts(bucket, layer)
        self.head(bucket)

    def embed(self, bucket: int) -> None:
        """Start a step: the residual stream becomes the embedding of its tokens."""
        self._replay(("embed", 0, 0, bucket), self._embed)

    def attend(self, bucket: int, layer: int) -> None:
        """Run the first piece of a layer."""
        self._replay(("attend", layer, 0, bucket), lambda step: self._attend(step, layer))

    def experts(self, bucket: int, layer: int) -> None:
        """Run the second piece of a layer, behind the first."""
        self._replay(("experts", layer, 0, bucket), lambda step: self._experts(step, layer))

    def head(self, bucket: int) -> None:
        """End a step: sample a token for each row."""
        self._replay(("head", 0, 0, bucket), self._head)

    def _replay(self, key: Key, work: Callable[[StepInput], None]) -> None:
        self._graphs.replay(key, lambda: work(self._buffers.step(key[3])))

    def _embed(self, step: StepInput) -> None:
        self.hidden[: step.n_rows].copy_(self._decoder.outer.embed(step))

    def _attend(self, step: StepInput, layer: int) -> None:
        hidden = self.hidden[: step.n_rows]
        self._routed = self._decoder.attend_and_route(self._weights[layer], layer, hidden, self._kv, step)

    def _experts(self, step: StepInput, layer: int) -> None:
        """Both pieces of a layer are captured one behind the other, so that nothing else was given Routed's memory."""
        routed, self._routed = self._routed, None
        assert routed is not None, "the first piece of a layer comes before its second"
        self._decoder.run_experts(self.hidden[: step.n_rows], routed, self._tables[layer])

    def _head(self, step: StepInput) -> None:
        self.sampled[: step.n_rows].copy_(greedy(self._decoder.outer.logits(self.hidden[: step.n_rows], step)))
