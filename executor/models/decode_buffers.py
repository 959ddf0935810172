"""The decode step whose tensors stay where they are, so that captured graphs can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.models.step import PADDING_SLOT, Row, StepInput, check_row

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows that decode steps are padded to. GEMMs of few rows take about as long as those of 64; attention skips padding."""


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
class _Host:
    """What the host writes before a step: token ids, block tables and contexts, pinned where there is a GPU."""

    token_ids: Tensor
    block_tables: Tensor
    contexts: Tensor


class DecodeBuffers:
    """Inputs of decode steps of one model, at fixed addresses; a step of a bucket is its first rows.

    A step can follow another without the host: ``advance`` takes the sampled tokens and moves
    every sequence on by one, as long as its blocks suffice.

    Args:
        max_rows: the largest bucket.
        max_blocks: KV blocks of the longest sequence.
        block_tokens: tokens a block holds.
    """

    def __init__(self, max_rows: int, max_blocks: int, block_tokens: int, device: torch.device) -> None:
        self._block_tokens = block_tokens
        on_gpu = device.type == "cuda"
        self._host = _Host(
            token_ids=torch.zeros(max_rows, dtype=torch.int64, pin_memory=on_gpu),
            block_tables=torch.zeros(max_rows, max_blocks, dtype=torch.int32, pin_memory=on_gpu),
            contexts=torch.zeros(max_rows, dtype=torch.int32, pin_memory=on_gpu),
        )
        self._token_ids = self._host.token_ids.to(device)
        self._block_tables = self._host.block_tables.to(device)
        self._contexts = self._host.contexts.to(device)
        self._positions = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._slots = torch.full((max_rows,), PADDING_SLOT, dtype=torch.int64, device=device)
        self._sampled = torch.arange(max_rows, device=device)
        self._copied = torch.cuda.Event() if on_gpu else None

    def step(self, bucket: int) -> StepInput:
        """Look at the first ``bucket`` rows as a step: views of the same memory every time."""
        return StepInput(
            token_ids=self._token_ids[:bucket],
            positions=self._positions[:bucket],
            slots=self._slots[:bucket],
            block_tables=self._block_tables[:bucket],
            contexts=self._contexts[:bucket],
            prefills=(),
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
            check_row(index, row, self._block_tokens, self._block_tables.shape[1])
            if len(row.token_ids) != 1:
                raise ValueError(f"row {index} has {len(row.token_ids)} new tokens: a decode has one")
        if self._copied is not None:
            self._copied.synchronize()  # the copy of the step before may still read the host's side
        self._write(rows, bucket)
        step = self.step(bucket)
        step.token_ids.copy_(self._host.token_ids[:bucket], non_blocking=True)
        step.block_tables.copy_(self._host.block_tables[:bucket], non_blocking=True)
        step.contexts.copy_(self._host.contexts[:bucket], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._locate(step)
        return step

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
        self._locate(step)

    def _write(self, rows: Sequence[Row], bucket: int) -> None:
        token_ids, tables = self._host.token_ids.numpy(), self._host.block_tables.numpy()
        contexts = self._host.contexts.numpy()
        token_ids[:bucket] = contexts[:bucket] = 0
        for index, row in enumerate(rows):
            token_ids[index] = row.token_ids[0]
            tables[index, : len(row.blocks)] = row.blocks
            contexts[index] = row.context

    def _locate(self, step: StepInput) -> None:
        """Find position and slot of each new token, the last of its context."""
        last = step.contexts.long() - 1
        step.positions.copy_(last.clamp(min=0))
        block = step.block_tables.gather(1, (step.positions // self._block_tokens)[:, None])[:, 0]
        slots = block * self._block_tokens + step.positions % self._block_tokens
        step.slots.copy_(torch.where(last >= 0, slots, PADDING_SLOT))
