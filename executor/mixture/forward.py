"""One step of a mixture of experts through all of its layers, experts from wherever they are now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from executor.experts.tables import LiveTables
from executor.forward import Passed
from executor.models.decode_buffers import DecodeBuffers, bucket_of
from executor.models.decoder import greedy
from executor.models.moe import MoeLayer
from executor.models.moe_decoder import MoeDecoder
from executor.models.moe_graphs import MoeGraphs
from executor.models.step import Row, compose
from executor.transfer.staging import Staging
from executor.transfer.streams import Mark, Streams


class MoeEager(Generic[Mark]):
    """Runs any step, kernel by kernel.

    Args:
        weights: each layer but for its experts.
        kv: (n_block_ids, n_layers, 2, block_tokens, n_kv_heads, head_dim).
        max_blocks: of the longest sequence.
    """

    def __init__(
        self,
        decoder: MoeDecoder,
        weights: Sequence[MoeLayer],
        tables: LiveTables,
        kv: Tensor,
        staging: Staging[Mark],
        streams: Streams[Mark],
        max_blocks: int,
    ) -> None:
        self._decoder, self._weights, self._tables = decoder, tuple(weights), tables
        self._kv, self._staging, self._streams = kv, staging, streams
        self._block_tokens, self._max_blocks = kv.shape[3], max_blocks

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> Passed[Mark]:
        """Ask the device for a step of these rows."""
        decoder, staging, kv = self._decoder, self._staging, self._kv
        with self._streams.computing():
            step = compose(rows, block_tokens=self._block_tokens, max_blocks=self._max_blocks, device=kv.device)
            hidden = decoder.outer.embed(step)
            self._tables.show(staging.parity)
            first = self._streams.mark()
            for layer, weights in enumerate(self._weights):
                routed = decoder.attend_and_route(weights, layer, hidden, kv, step)
                staging.enter(layer)
                decoder.run_experts(hidden, routed, self._tables.layers[layer])
                staging.leave(layer)
            last = self._streams.mark()
            return Passed(layers=(first, last), hidden=hidden, sampled=greedy(decoder.outer.logits(hidden, step)))


class MoeGraphed(Generic[Mark]):
    """Runs decode steps as graphs on a GPU, two for each layer; others kernel by kernel."""

    def __init__(
        self,
        eager: MoeEager[Mark],
        graphs: MoeGraphs,
        buffers: DecodeBuffers,
        tables: LiveTables,
        staging: Staging[Mark],
        streams: Streams[Mark],
    ) -> None:
        self._eager, self._graphs, self._buffers = eager, graphs, buffers
        self._tables, self._staging, self._streams = tables, staging, streams

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> Passed[Mark]:
        """Ask the device for a step of these rows."""
        if not all(len(row.token_ids) == 1 and row.samples for row in rows):
            return self._eager.run(rows)
        graphs, staging, n_rows, bucket = self._graphs, self._staging, len(rows), bucket_of(len(rows))
        with self._streams.computing():
            self._buffers.fill(rows, bucket)
            graphs.embed(bucket)
            self._tables.show(staging.parity)
            first = self._streams.mark()
            for layer in range(graphs.n_layers):
                graphs.attend(bucket, layer)
                staging.enter(layer)
                graphs.experts(bucket, layer)
                staging.leave(layer)
            last = self._streams.mark()
            graphs.head(bucket)
        return Passed(layers=(first, last), hidden=graphs.hidden[:n_rows], sampled=graphs.sampled[:n_rows])
