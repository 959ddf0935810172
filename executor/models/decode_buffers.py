"""The decode step whose tensors stay where they are, so that captured graphs can read them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from executor.models.step import PADDING_SLOT, Row, StepInput, check_row

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows that decode steps are padded to: a GEMM of few rows takes about as long as one of 64."""


def bucket_of(n_rows: int, buckets: Sequence[int] = BATCH_BUCKETS) -> int:
    """Choose the smallest bucket that holds ``n_rows``.

    Raises:
        ValueError: none does.
    """
    fitting = [bucket for bucket in buckets if bucket >= n_rows]
    if not fitting:
        raise ValueError(f"a decode step of {n_rows} sequences exceeds the largest bucket, {max(buckets)}")
    return min(fitting)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """All inputs of a step as parts of one buffer, tables last, so that a bucket is one copy of its first bytes.

    Attributes:
        buffer: uint8, (n_bytes,).
        token_ids, positions, slots: (max_rows,) int64.
        contexts: (max_rows,) int32.
        block_tables: (max_rows, max_blocks) int32.
    """

    buffer: Tensor
    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    contexts: Tensor
    block_tables: Tensor

    @classmethod
    def over(cls, buffer: Tensor, max_rows: int) -> _Inputs:
        """Divide a buffer of ``n_bytes(max_rows, max_rows, max_blocks)`` bytes."""
        token_ids, positions, slots = buffer[: 24 * max_rows].view(torch.int64).view(3, max_rows)
        numbers = buffer[24 * max_rows :].view(torch.int32)
        tables = numbers[max_rows:].view(max_rows, -1)
        return cls(buffer, token_ids, positions, slots, numbers[:max_rows], tables)

    @staticmethod
    def n_bytes(n_rows: int, max_rows: int, max_blocks: int) -> int:
        """Bytes up to the table of row ``n_rows``: three numbers of 8 bytes a row, one of 4, then tables."""
        return 28 * max_rows + 4 * n_rows * max_blocks


class DecodeBuffers:
    """Inputs of decode steps of one model, at fixed addresses; a step of a bucket is its first rows.

    A step can follow another without the host: ``advance`` takes the sampled tokens and moves
    every sequence on by one, as long as its blocks suffice.

    The host works each step out in a buffer of its own, pinned where there is a GPU, and copies
    it at once. There a row keeps its block table as long as it is filled with the same blocks.

    Args:
        max_rows: the largest bucket.
        max_blocks: KV blocks of the longest sequence.
        block_tokens: tokens a block holds.
    """

    def __init__(self, max_rows: int, max_blocks: int, block_tokens: int, device: torch.device) -> None:
        self._max_rows, self._max_blocks, self._block_tokens = max_rows, max_blocks, block_tokens
        on_gpu = device.type == "cuda"
        host = torch.zeros(_Inputs.n_bytes(max_rows, max_rows, max_blocks), dtype=torch.uint8, pin_memory=on_gpu)
        self._host, self._device = _Inputs.over(host, max_rows), _Inputs.over(host.to(device, copy=True), max_rows)
        self._device.slots.fill_(PADDING_SLOT)
        self._tables = self._host.block_tables.view(-1).numpy().data
        self._filled: list[Sequence[int]] = [()] * max_rows  # what the host's table of each row begins with
        self._sampled = torch.arange(max_rows, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None

    def step(self, bucket: int) -> StepInput:
        """Look at the first ``bucket`` rows as a step: views of the same memory every time."""
        inputs = self._device
        return StepInput(
            token_ids=inputs.token_ids[:bucket],
            positions=inputs.positions[:bucket],
            slots=inputs.slots[:bucket],
            block_tables=inputs.block_tables[:bucket],
            contexts=inputs.contexts[:bucket],
            prefills=None,
            sampled=self._sampled[:bucket],
        )

    def fill(self, rows: Sequence[Row], bucket: int) -> StepInput:
        """Write a decode step of ``len(rows)`` sequences and padding, on the current stream.

        Raises:
            ValueError: a row is no decode or lacks blocks, or there are more rows than ``bucket``.
        """
        if len(rows) > bucket:
            raise ValueError(f"{len(rows)} sequences exceed the bucket of {bucket}")
        for index, row in enumerate(rows):
            check_row(index, row, self._block_tokens, self._max_blocks)
            if len(row.token_ids) != 1:
                raise ValueError(f"row {index} has {len(row.token_ids)} new tokens: a decode has one")
        if self._copied is not None:
            self._copied.synchronize()  # the copy of the step before may still read the host's side
        self._write(rows, bucket)
        n_bytes = _Inputs.n_bytes(bucket, self._max_rows, self._max_blocks)
        self._device.buffer[:n_bytes].copy_(self._host.buffer[:n_bytes], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return self.step(bucket)

    def clear(self, bucket: int) -> StepInput:
        """Make every row padding: a step that reads and writes no KV, for warming up and capturing."""
        return self.fill((), bucket)

    def advance(self, step: StepInput, token_ids: Tensor) -> None:
        """Move every sequence of a step on by the token it has sampled; on the device, can be captured.

        Args:
            token_ids: (bucket,) int64.
        """
        step.token_ids.copy_(token_ids)
        step.contexts.add_((step.contexts > 0).int())
        last = step.contexts.long() - 1
        step.positions.copy_(last.clamp(min=0))
        block = step.block_tables.gather(1, (step.positions // self._block_tokens)[:, None])[:, 0]
        slots = block * self._block_tokens + step.positions % self._block_tokens
        step.slots.copy_(torch.where(last >= 0, slots, PADDING_SLOT))

    def _write(self, rows: Sequence[Row], bucket: int) -> None:
        """Work the step out in the host's buffer."""
        n_rows, block_tokens = len(rows), self._block_tokens
        positions = np.array([row.n_before for row in rows], dtype=np.int64)
        last_blocks = np.array([row.blocks[row.n_before // block_tokens] for row in rows], dtype=np.int64)
        for inputs, values, padding in (
            (self._host.token_ids, [row.token_ids[0] for row in rows], 0),
            (self._host.positions, positions, 0),
            (self._host.slots, last_blocks * block_tokens + positions % block_tokens, PADDING_SLOT),
            (self._host.contexts, positions + 1, 0),
        ):
            numbers = inputs.numpy()
            numbers[:n_rows] = values
            numbers[n_rows:bucket] = padding
        for index, row in enumerate(rows):
            if self._filled[index] != row.blocks:
                first = index * self._max_blocks
                self._tables[first : first + len(row.blocks)] = array("i", row.blocks)
                self._filled[index] = list(row.blocks)  # a copy: the scheduler changes its list in place
