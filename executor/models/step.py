"""One step of one model as tensors: which tokens, where they stand, and where their K and V lie.

Rows of the step are tokens: first one for each decode, then the new tokens of each prefill, one
sequence after the other. A step that is run as graphs is all decodes or all prefills, and padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

PADDING_SLOT = -1
"""The slot of a row that is there only to fill a bucket: its K and V are not stored."""

TILE_ROWS = 64
"""Most rows of a tile: what one warp group of a GPU multiplies at once."""

ALIGNMENT_BYTES = 16
"""Each tensor of a step starts at a multiple of this. Triton compiles a kernel anew for one that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sequence in a step, on the host.

    Attributes:
        token_ids: its new tokens, at least one.
        n_before: its tokens whose K and V are in the cache already.
        blocks: its KV blocks, in order of position; enough for old and new tokens.
        samples: whether the last of its new tokens goes through the head.
    """

    token_ids: Sequence[int]
    n_before: int
    blocks: Sequence[int]
    samples: bool = True

    @property
    def context(self) -> int:
        """Tokens that its last new token attends to, itself included."""
        return self.n_before + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The rows of one sequence with several new tokens, on the host.

    Attributes:
        first_row: row of its first new token; the others follow.
        context: tokens that its last new token attends to, itself included.
        table: which of the step's block tables is its own.
    """

    first_row: int
    n_new: int
    context: int
    table: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefills:
    """All sequences of a step with several new tokens: one by one, and cut into tiles for a kernel.

    Attributes:
        sequences: in order; a step that is filled in place has none, its tiles say it all.
        tiles: (n_tiles, 3) int32 on the model's device; first row, number of rows and block table. No rows: padding.
        tables: (n_sequences, max_blocks) int32, there too; past a sequence's blocks anything.
    """

    sequences: tuple[Prefill, ...]
    tiles: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step on the model's device.

    Attributes:
        token_ids, positions: (n_rows,) int64.
        slots: (n_rows,) int64; block * block_tokens + offset of each token's K and V, ``PADDING_SLOT`` for none.
        block_tables: (n_decodes, max_blocks) int32; past a sequence's blocks anything.
        contexts: (n_decodes,) int32; tokens attended to, the new one included, 0 for padding.
        prefills: sequences with several new tokens, if there are any.
        sampled: (n_sampled,) int64; rows that go through the head, in the order of the sequences.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    contexts: Tensor
    prefills: Prefills | None
    sampled: Tensor

    @property
    def n_rows(self) -> int:
        """Tokens that pass through the GEMMs, padding included."""
        return self.token_ids.shape[0]

    @property
    def n_decodes(self) -> int:
        """Rows that are decodes or padding; they come first."""
        return self.contexts.shape[0]


def compose(rows: Sequence[Row], *, block_tokens: int, max_blocks: int, device: torch.device) -> StepInput:
    """Turn sequences, decodes and prefills in any order, into the tensors of one step.

    Args:
        block_tokens: tokens a block holds.
        max_blocks: width of the block tables.

    Raises:
        ValueError: there is no row, or ``check_row`` refuses one.
    """
    if not rows:
        raise ValueError("a step needs at least one sequence")
    for index, row in enumerate(rows):
        check_row(index, row, block_tokens, max_blocks)
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].token_ids) > 1)  # decodes first, else as given
    ordered = [rows[index] for index in order]
    n_decodes = sum(len(row.token_ids) == 1 for row in rows)
    ends = np.cumsum([len(row.token_ids) for row in ordered])
    last_row_of = dict(zip(order, ends - 1, strict=True))
    sequences = prefills_of(ordered, ends, n_decodes)
    tables = tables_of(ordered, max_blocks)
    arrays = [
        *tokens_of(ordered, tables, block_tokens),
        np.array([row.context for row in ordered[:n_decodes]], dtype=np.int32),
        np.array([last_row_of[index] for index, row in enumerate(rows) if row.samples], dtype=np.int64),
        tiles_of(sequences),
        tables,
    ]
    there = pack(arrays, device).to(device, non_blocking=True)
    token_ids, positions, slots, contexts, sampled, tiles, device_tables = unpack(there, arrays)
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_tables=device_tables[:n_decodes],
        contexts=contexts,
        prefills=Prefills(sequences=sequences, tiles=tiles, tables=device_tables) if sequences else None,
        sampled=sampled,
    )


def tables_of(rows: Sequence[Row], max_blocks: int) -> np.ndarray:
    """Block tables, (n_rows, max_blocks) int32."""
    tables = np.zeros((len(rows), max_blocks), dtype=np.int32)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    return tables


def tokens_of(rows: Sequence[Row], tables: np.ndarray, block_tokens: int) -> np.ndarray:
    """Ids, positions and slots of all new tokens, (3, n_tokens) int64."""
    n_new = np.array([len(row.token_ids) for row in rows])
    row_of = np.repeat(np.arange(len(rows)), n_new)
    firsts = np.array([row.n_before for row in rows]) - np.cumsum(n_new) + n_new
    positions = firsts[row_of] + np.arange(len(row_of))
    blocks = tables[row_of, positions // block_tokens].astype(np.int64)
    token_ids = [token_id for row in rows for token_id in row.token_ids]
    return np.array([token_ids, positions, blocks * block_tokens + positions % block_tokens], dtype=np.int64)


def tiles_of(sequences: Sequence[Prefill]) -> np.ndarray:
    """Cut prefills into tiles, (n_tiles, 3) int32: first row, number of rows, block table."""
    tiles = [
        (each.first_row + first, min(TILE_ROWS, each.n_new - first), each.table)
        for each in sequences
        for first in range(0, each.n_new, TILE_ROWS)
    ]
    return np.array(tiles, dtype=np.int32).reshape(-1, 3)


def pack(arrays: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Put arrays one behind the other, each at an aligned place, on the host.

    Returns:
        (n_bytes,) uint8, pinned if the device is a GPU: it can then be copied there without waiting, and torch
        keeps the memory until that is done.
    """
    starts = _starts(arrays)
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    for start, each in zip(starts, arrays, strict=False):
        numbers[start : start + each.nbytes] = each.reshape(-1).view(np.uint8)
    return host


def unpack(packed: Tensor, like: Sequence[np.ndarray]) -> list[Tensor]:
    """Look at a copy of packed arrays as tensors of their shapes and data types."""
    return [_part(packed, start, each) for start, each in zip(_starts(like), like, strict=False)]


def _starts(arrays: Sequence[np.ndarray]) -> list[int]:
    """Where each packed array begins, in bytes, and the end."""
    sizes = [-(-each.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for each in arrays]
    return [0, *accumulate(sizes)]


def _part(packed: Tensor, start: int, like: np.ndarray) -> Tensor:
    dtype = torch.int64 if like.dtype == np.int64 else torch.int32
    return packed[start : start + like.nbytes].view(dtype).view(like.shape)


def prefills_of(rows: Sequence[Row], ends: np.ndarray, first: int = 0) -> tuple[Prefill, ...]:
    """Sequences from the ``first`` on, with the place of their tokens among those of all.

    Args:
        ends: token behind the last of each sequence.
    """
    return tuple(
        Prefill(first_row=int(end) - len(row.token_ids), n_new=len(row.token_ids), context=row.context, table=index)
        for index, (row, end) in enumerate(zip(rows, ends, strict=True))
        if index >= first
    )


def check_row(index: int, row: Row, block_tokens: int, max_blocks: int) -> None:
    """Refuse a row that no step can carry out.

    Raises:
        ValueError: it has no token, too few blocks for its context, or more than ``max_blocks``.
    """
    if not row.token_ids:
        raise ValueError(f"row {index} has no new token")
    if len(row.blocks) * block_tokens < row.context:
        raise ValueError(f"row {index}: {len(row.blocks)} blocks of {block_tokens} hold less than {row.context} tokens")
    if len(row.blocks) > max_blocks:
        raise ValueError(f"row {index}: {len(row.blocks)} blocks exceed the table's {max_blocks}")
