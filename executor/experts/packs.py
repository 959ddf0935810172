"""How expert weights lie in memory: packs of consecutive experts, and tables of the addresses of every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

UNIT_BYTES = 16
"""Offsets count in units of so many bytes, the widest access of one thread: so a kernel knows that it may use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLayout:
    """Consecutive experts in one region: gate and up of each, then, from the next page on, down of each::

        | gate, up of the first | gate, up of the second | .. | down of the first | down of the second | .. |

    Attributes:
        n_experts: in the pack.
        hidden, ffn: gate and up are ``(2 * ffn, hidden)`` together, down is ``(hidden, ffn)``.
        page_bytes: to which both parts are padded.

    Raises:
        ValueError: experts would not begin at whole units.
    """

    n_experts: int
    hidden: int
    ffn: int
    dtype: torch.dtype
    page_bytes: int

    def __post_init__(self) -> None:
        if self.down_bytes % UNIT_BYTES or self.page_bytes % UNIT_BYTES:
            raise ValueError(f"experts of {self.hidden} x {self.ffn} in {self.dtype} are no multiple of {UNIT_BYTES} B")

    @property
    def down_bytes(self) -> int:
        """Of one expert; gate and up have twice as many."""
        return self.hidden * self.ffn * self.dtype.itemsize

    @property
    def down_offset(self) -> int:
        """Where the down projections begin."""
        return _round_up(2 * self.n_experts * self.down_bytes, self.page_bytes)

    @property
    def n_bytes(self) -> int:
        """The whole pack."""
        return self.down_offset + _round_up(self.n_experts * self.down_bytes, self.page_bytes)

    def gate_up(self, region: Tensor) -> Tensor:
        """Gate and up of all its experts, (n_experts, 2 * ffn, hidden): a view of a region of ``n_bytes`` bytes."""
        flat = region[: 2 * self.n_experts * self.down_bytes].view(self.dtype)
        return flat.view(self.n_experts, 2 * self.ffn, self.hidden)

    def down(self, region: Tensor) -> Tensor:
        """Down of all its experts, (n_experts, hidden, ffn), likewise."""
        flat = region[self.down_offset : self.down_offset + self.n_experts * self.down_bytes].view(self.dtype)
        return flat.view(self.n_experts, self.hidden, self.ffn)

    def offsets(self, address: int, base_address: int) -> tuple[list[int], list[int]]:
        """Offsets of gate-up and of down of each expert of a pack at an address, in units from the base."""
        first = (address - base_address) // UNIT_BYTES
        down = first + self.down_offset // UNIT_BYTES
        step = self.down_bytes // UNIT_BYTES
        nth = range(self.n_experts)
        return [first + 2 * step * each for each in nth], [down + step * each for each in nth]


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """Where the experts of one layer lie.

    Attributes:
        base: one-dimensional, in the model's data type; offsets count from its first element.
        offsets: (2, n_experts) int64 on the model's device: gate-up and down of each, in units of ``UNIT_BYTES``.
    """

    base: Tensor
    offsets: Tensor


def table_of(layout: PackLayout, packs: Sequence[Tensor]) -> ExpertTable:
    """Make the table of a layer whose experts lie in equal packs, in order.

    Args:
        packs: regions, uint8, on one device.
    """
    base = packs[0].data_ptr()
    pairs = [layout.offsets(pack.data_ptr(), base) for pack in packs]
    rows = [[offset for pair in pairs for offset in pair[part]] for part in (0, 1)]
    return ExpertTable(packs[0].view(layout.dtype), torch.tensor(rows, device=packs[0].device))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
