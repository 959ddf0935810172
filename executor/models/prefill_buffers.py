"""The prefill step whose tensors stay where they are, so that captured graphs can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from executor.models.step import (
    PADDING_SLOT,
    TILE_ROWS,
    Prefills,
    Row,
    StepInput,
    check_row,
    pack,
    prefills_of,
    tables_of,
    tiles_of,
    tokens_of,
    unpack,
)

TOKEN_BUCKETS = (32, 64, 128, 256, 384, 512, 640, 768, 896, 1024)
"""Rows that prefill steps are padded to. Up to 256 a GEMM takes about as long as reading its weights, then whole
tiles of 128 rows; beyond the last, launching takes less time than the layer itself and nothing is gained by a graph."""

TOKENS_PER_SEQ = 8
"""A bucket takes a sequence for so many of its rows: each may leave a tile that is not full."""


def prefill_bucket_of(rows: Sequence[Row]) -> int | None:
    """Choose the smallest bucket that holds these sequences; ``None`` if one is a decode or there is no such bucket."""
    if any(len(row.token_ids) == 1 for row in rows):
        return None
    n_wanted = max(sum(len(row.token_ids) for row in rows), TOKENS_PER_SEQ * len(rows))
    return next((bucket for bucket in TOKEN_BUCKETS if bucket >= n_wanted), None)


class PrefillBuffers:
    """Inputs of prefill steps of one model, at fixed addresses for each bucket.

    Args:
        max_blocks: KV blocks of the longest sequence.
        block_tokens: tokens a block holds.

    Attributes:
        max_rows: the largest bucket.
    """

    def __init__(self, max_blocks: int, block_tokens: int, device: torch.device) -> None:
        self._max_blocks, self._block_tokens, self._device = max_blocks, block_tokens, device
        self.max_rows = TOKEN_BUCKETS[-1]
        self._packed: dict[int, Tensor] = {}
        self._steps: dict[int, StepInput] = {}
        for bucket in TOKEN_BUCKETS:
            tables = np.zeros((bucket // TOKENS_PER_SEQ, max_blocks), dtype=np.int32)
            arrays = [*self._arrays((), bucket), tables]
            self._packed[bucket] = pack(arrays, device).to(device, copy=True)
            self._steps[bucket] = _step_over(self._packed[bucket], arrays)

    def fill(self, rows: Sequence[Row], bucket: int) -> StepInput:
        """Write a step of prefills, and padding, on the current stream.

        Args:
            rows: none for a step that reads and writes no KV.

        Returns:
            The step of that bucket; but for ``sampled``, the same views of the same memory every time.

        Raises:
            ValueError: a row lacks blocks, or the rows exceed the bucket.
        """
        n_tokens = sum(len(row.token_ids) for row in rows)
        if n_tokens > bucket or len(rows) > bucket // TOKENS_PER_SEQ:
            raise ValueError(f"{n_tokens} tokens of {len(rows)} sequences exceed the bucket of {bucket}")
        for index, row in enumerate(rows):
            check_row(index, row, self._block_tokens, self._max_blocks)
        arrays = [*self._arrays(rows, bucket), tables_of(rows, self._max_blocks)]
        host = pack(arrays, self._device)  # tables last: those of sequences that are not there are left as they were
        self._packed[bucket][: host.numel()].copy_(host, non_blocking=True)
        step = self._steps[bucket]
        return replace(step, sampled=step.sampled[: sum(row.samples for row in rows)])

    def _arrays(self, rows: Sequence[Row], bucket: int) -> list[np.ndarray]:
        """Token ids, positions, slots, sampled rows and tiles, padded to what the bucket holds."""
        n_seqs = bucket // TOKENS_PER_SEQ
        tokens = np.zeros((3, bucket), dtype=np.int64)
        tokens[2] = PADDING_SLOT
        sampled = np.zeros(n_seqs, dtype=np.int64)
        tiles = np.zeros((bucket // TILE_ROWS + n_seqs, 3), dtype=np.int32)
        if rows:
            ends = np.cumsum([len(row.token_ids) for row in rows])
            tokens[:, : ends[-1]] = tokens_of(rows, tables_of(rows, self._max_blocks), self._block_tokens)
            lasts = [end - 1 for row, end in zip(rows, ends, strict=True) if row.samples]
            sampled[: len(lasts)] = lasts
            cut = tiles_of(prefills_of(rows, ends))
            tiles[: len(cut)] = cut
        return [*tokens, sampled, tiles]


def _step_over(packed: Tensor, arrays: Sequence[np.ndarray]) -> StepInput:
    """Look at packed arrays as a step."""
    token_ids, positions, slots, sampled, tiles, tables = unpack(packed, arrays)
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_tables=tables[:0],
        contexts=tables[:0, 0],
        prefills=Prefills(sequences=(), tiles=tiles, tables=tables),
        sampled=sampled,
    )
