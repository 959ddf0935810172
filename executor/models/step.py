"""One step of one model as tensors: which tokens, where they stand, and where their K and V lie.

Rows of the step are tokens: first one for each decode, padded to a bucket, then the new
tokens of each prefill, one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PADDING_SLOT = -1
"""The slot of a row that is there only to fill a bucket: its K and V are not stored."""


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
    """The rows of one sequence with several new tokens.

    Attributes:
        first_row: row of its first new token; the others follow.
        context: tokens that its last new token attends to, itself included.
        blocks: (n_blocks,) int64, on the model's device.
    """

    first_row: int
    n_new: int
    context: int
    blocks: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step on the model's device.

    Attributes:
        token_ids, positions: (n_rows,) int64.
        slots: (n_rows,) int64; block * block_tokens + offset of each token's K and V, ``PADDING_SLOT`` for none.
        block_tables: (n_decodes, max_blocks) int32; past a sequence's blocks anything.
        contexts: (n_decodes,) int32; tokens attended to, the new one included, 0 for padding.
        prefills: sequences with several new tokens, in order.
        sampled: (n_sampled,) int64; rows that go through the head, in the order of the sequences.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    contexts: Tensor
    prefills: tuple[Prefill, ...]
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
    tables, contexts = _tables(ordered[:n_decodes], max_blocks)

    def on_device(values: Sequence[int] | np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int64)).to(device)

    return StepInput(
        token_ids=on_device([token_id for row in ordered for token_id in row.token_ids]),
        positions=on_device(np.concatenate([_positions(row) for row in ordered])),
        slots=on_device(np.concatenate([_slots(row, block_tokens) for row in ordered])),
        block_tables=torch.from_numpy(tables).to(device),
        contexts=torch.from_numpy(contexts).to(device),
        prefills=tuple(
            Prefill(
                first_row=int(end) - len(row.token_ids),
                n_new=len(row.token_ids),
                context=row.context,
                blocks=on_device(row.blocks[: -(-row.context // block_tokens)]),
            )
            for row, end in zip(ordered[n_decodes:], ends[n_decodes:], strict=True)
        ),
        sampled=on_device([last_row_of[index] for index, row in enumerate(rows) if row.samples]),
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


def _tables(decodes: Sequence[Row], max_blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Block tables, (n_decodes, max_blocks), and contexts, (n_decodes,), both int32."""
    tables = np.zeros((len(decodes), max_blocks), dtype=np.int32)
    for table, row in zip(tables, decodes, strict=True):
        table[: len(row.blocks)] = row.blocks
    return tables, np.array([row.context for row in decodes], dtype=np.int32)


def _positions(row: Row) -> np.ndarray:
    """Positions of the new tokens."""
    return np.arange(row.n_before, row.context)


def _slots(row: Row, block_tokens: int) -> np.ndarray:
    """Where K and V of the new tokens go."""
    positions = _positions(row)
    return np.asarray(row.blocks)[positions // block_tokens] * block_tokens + positions % block_tokens
