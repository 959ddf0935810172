"""One step of one model through all of its layers, each from where its weights lie now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from executor.models.decode_buffers import DecodeBuffers, bucket_of
from executor.models.decoder import Decoder, greedy
from executor.models.graphs import DecodeGraphs, PrefillGraphs
from executor.models.prefill_buffers import PrefillBuffers, prefill_bucket_of
from executor.models.step import Row, compose
from executor.transfer.slots import Slots
from executor.transfer.streams import Mark, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed(Generic[Mark]):
    """What a step that was asked of the device leaves there, once it has been reached.

    Attributes:
        layers: begin and end of its layers.
        hidden: (n_rows, hidden), the residual stream behind the last layer.
        sampled: (n_sampled,) int64, on the device.
    """

    layers: tuple[Mark, Mark]
    hidden: Tensor
    sampled: Tensor


class Eager(Generic[Mark]):
    """Runs any step, kernel by kernel.

    Args:
        weights: each home, uint8, on the device.
        kv: (n_block_ids, n_layers, 2, block_tokens, n_kv_heads, head_dim).
        max_blocks: of the longest sequence.
    """

    def __init__(
        self,
        decoder: Decoder,
        weights: Sequence[Tensor],
        kv: Tensor,
        slots: Slots[Mark],
        streams: Streams[Mark],
        max_blocks: int,
    ) -> None:
        self._decoder, self._kv, self._slots, self._streams = decoder, kv, slots, streams
        self._layers = [decoder.layer(region) for region in weights]
        self._block_tokens, self._max_blocks = kv.shape[3], max_blocks

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> Passed[Mark]:
        """Ask the device for a step of these rows."""
        decoder, slots, kv = self._decoder, self._slots, self._kv
        with self._streams.computing():
            step = compose(rows, block_tokens=self._block_tokens, max_blocks=self._max_blocks, device=kv.device)
            hidden = decoder.embed(step)
            first = self._streams.mark()
            for layer in range(decoder.spec.shape.n_layers):
                home = slots.enter(layer)
                decoder.run_layer(self._layers[home], layer, hidden, kv, step)
                slots.leave(layer)
            last = self._streams.mark()
            return Passed(layers=(first, last), hidden=hidden, sampled=greedy(decoder.logits(hidden, step)))


class Graphed(Generic[Mark]):
    """Runs decode steps, and prefill steps of not too many tokens, as graphs on a GPU; others kernel by kernel."""

    def __init__(
        self,
        eager: Eager[Mark],
        decodes: tuple[DecodeGraphs, DecodeBuffers],
        prefills: tuple[PrefillGraphs, PrefillBuffers],
        weights: Sequence[Tensor],
        slots: Slots[Mark],
        streams: Streams[Mark],
    ) -> None:
        self._eager, self._decodes, self._prefills = eager, decodes, prefills
        self._weights, self._slots, self._streams = tuple(weights), slots, streams

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> Passed[Mark]:
        """Ask the device for a step of these rows."""
        if all(len(row.token_ids) == 1 and row.samples for row in rows):
            return self._decode(rows)
        bucket = prefill_bucket_of(rows)
        return self._eager.run(rows) if bucket is None else self._prefill(rows, bucket)

    def _decode(self, rows: Sequence[Row]) -> Passed[Mark]:
        (graphs, buffers), n_rows, bucket = self._decodes, len(rows), bucket_of(len(rows))
        with self._streams.computing():
            buffers.fill(rows, bucket)
            graphs.embed(bucket)
            layers = self._layers(lambda layer, region: graphs.layer(bucket, layer, region))
            graphs.head(bucket)
        return Passed(layers=layers, hidden=graphs.hidden[:n_rows], sampled=graphs.sampled[:n_rows])

    def _prefill(self, rows: Sequence[Row], bucket: int) -> Passed[Mark]:
        (graphs, buffers), n_rows = self._prefills, sum(len(row.token_ids) for row in rows)
        with self._streams.computing():
            step = buffers.fill(rows, bucket)
            graphs.embed(step)
            layers = self._layers(lambda layer, region: graphs.layer(step, layer, region))
            return Passed(layers=layers, hidden=graphs.hidden[:n_rows], sampled=graphs.head(step))

    def _layers(self, run: Callable[[int, Tensor], None]) -> tuple[Mark, Mark]:
        """Run every layer from where its weights are; when the first begins and the last has ended."""
        slots, first = self._slots, self._streams.mark()
        for layer in range(len(self._weights)):
            run(layer, self._weights[slots.enter(layer)])
            slots.leave(layer)
        return first, self._streams.mark()
