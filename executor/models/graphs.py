"""Steps as CUDA graphs: one for each layer, place and bucket.

A graph keeps the addresses that it was captured with. A layer that moves is replayed
from another graph; between two graphs the caller may make the stream wait for a fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from executor.models.decode_buffers import DecodeBuffers
from executor.models.decoder import Decoder, greedy
from executor.models.prefill_buffers import PrefillBuffers
from executor.models.step import StepInput

Key = tuple[str, int, int, int]
"""Piece, layer, address, bucket."""


class Graphs:
    """CUDA graphs on one stream, captured when first wanted.

    A graph is known by what was captured: which piece of a step, of which layer, from which address, at which size.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()  # one for all: no graph reads what another left in it

    def __len__(self) -> int:
        return len(self._graphs)

    def replay(self, key: Key, work: Callable[[], None]) -> None:
        """Do the work that a key stands for, on the stream."""
        if key not in self._graphs:
            self._graphs[key] = self._capture(work)
        with torch.cuda.stream(self._stream):
            self._graphs[key].replay()

    @torch.inference_mode()
    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):  # torch.cuda.graph would wait for the device and empty its cache as well
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph


class DecodeGraphs:
    """The decode step of one model on one stream, in pieces that are captured when first wanted.

    Call ``warm_up`` for a bucket before anything else of it. Then, for every step:
    ``buffers.fill``, ``embed``, ``layer`` for each layer in order, ``head``. All of it runs on
    ``stream``; nothing waits for the device, and capturing runs nothing.

    Attributes:
        hidden: (max_rows, hidden), the residual stream; after ``head`` that of the last layer.
        sampled: (max_rows,) int64, the likeliest token of each row after ``head``.

    Args:
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim); never moves.
    """

    def __init__(
        self, decoder: Decoder, buffers: DecodeBuffers, kv: Tensor, max_rows: int, stream: torch.cuda.Stream
    ) -> None:
        self._decoder, self._buffers, self._kv, self._stream = decoder, buffers, kv, stream
        self._graphs = Graphs(stream)
        spec = decoder.spec
        self.hidden = torch.zeros(max_rows, spec.shape.hidden, dtype=spec.dtype, device=kv.device)
        self.sampled = torch.zeros(max_rows, dtype=torch.int64, device=kv.device)

    @property
    def n_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    @torch.inference_mode()
    def warm_up(self, bucket: int, region: Tensor) -> None:
        """Run each piece once on padding, so that every kernel is compiled; clears the buffers.

        Args:
            region: any readable layer region of this model.
        """
        with torch.cuda.stream(self._stream):
            step = self._buffers.clear(bucket)
            self._embed(step)
            self._layer(step, 0, region)
            self._head(step)
            self._buffers.advance(step, self.sampled[:bucket])  # padding stays padding
        self._stream.synchronize()

    def embed(self, bucket: int) -> None:
        """Start a step: the residual stream becomes the embedding of its tokens."""
        self._replay(("embed", 0, 0, bucket), self._embed)

    def layer(self, bucket: int, layer: int, region: Tensor) -> None:
        """Run a layer from where its weights lie now.

        Args:
            region: (>= layout.n_bytes,) uint8, mapped for as long as its graph is used.
        """
        self._replay(("layer", layer, region.data_ptr(), bucket), lambda step: self._layer(step, layer, region))

    def head(self, bucket: int) -> None:
        """End a step: sample a token for each row."""
        self._replay(("head", 0, 0, bucket), self._head)

    def advance(self, bucket: int) -> None:
        """Make the sampled tokens the input of the next step."""
        self._replay(("advance", 0, 0, bucket), lambda step: self._buffers.advance(step, self.sampled[:bucket]))

    def _replay(self, key: Key, work: Callable[[StepInput], None]) -> None:
        self._graphs.replay(key, lambda: work(self._buffers.step(key[3])))

    def _embed(self, step: StepInput) -> None:
        self.hidden[: step.n_rows].copy_(self._decoder.embed(step))

    def _layer(self, step: StepInput, layer: int, region: Tensor) -> None:
        weights = self._decoder.layer(region)
        self._decoder.run_layer(weights, layer, self.hidden[: step.n_rows], self._kv, step)

    def _head(self, step: StepInput) -> None:
        self.sampled[: step.n_rows].copy_(greedy(self._decoder.logits(self.hidden[: step.n_rows], step)))


class PrefillGraphs:
    """The layers of prefill steps of one model on one stream; what is before and behind them runs kernel by kernel.

    Call ``warm_up`` for a bucket before anything else of it. Then, for every step:
    ``buffers.fill``, ``embed``, ``layer`` for each layer in order, and ``head``.

    Attributes:
        hidden: (max_rows, hidden), the residual stream.

    Args:
        kv: (n_blocks, n_layers, 2, block_tokens, n_kv_heads, head_dim); never moves.
    """

    def __init__(self, decoder: Decoder, buffers: PrefillBuffers, kv: Tensor, stream: torch.cuda.Stream) -> None:
        self._decoder, self._buffers, self._kv, self._stream = decoder, buffers, kv, stream
        self._graphs = Graphs(stream)
        spec = decoder.spec
        self.hidden = torch.zeros(buffers.max_rows, spec.shape.hidden, dtype=spec.dtype, device=kv.device)

    @torch.inference_mode()
    def warm_up(self, bucket: int, regions: Sequence[Tensor]) -> None:
        """Run a layer once on padding, so that every kernel is compiled; then capture each where it is at home.

        Args:
            regions: readable layer regions of this model, one for each layer.
        """
        with torch.cuda.stream(self._stream):
            step = self._buffers.fill((), bucket)
            self.embed(step)
            self._layer(step, 0, regions[0])
        self._stream.synchronize()
        for layer, region in enumerate(regions):
            self.layer(step, layer, region)

    def embed(self, step: StepInput) -> None:
        """Start a step, on the current stream: the residual stream becomes the embedding of its tokens."""
        self.hidden[: step.n_rows].copy_(self._decoder.embed(step))

    def layer(self, step: StepInput, layer: int, region: Tensor) -> None:
        """Run a layer from where its weights lie now.

        Args:
            step: as the buffers gave it.
            region: (>= layout.n_bytes,) uint8, mapped for as long as its graph is used.
        """
        key = ("prefill", layer, region.data_ptr(), step.n_rows)
        self._graphs.replay(key, lambda: self._layer(step, layer, region))

    def head(self, step: StepInput) -> Tensor:
        """End a step, on the current stream: (n_sampled,) int64, the likeliest tokens."""
        return greedy(self._decoder.logits(self.hidden, step))

    def _layer(self, step: StepInput, layer: int, region: Tensor) -> None:
        weights = self._decoder.layer(region)
        self._decoder.run_layer(weights, layer, self.hidden[: step.n_rows], self._kv, step)
