"""How large everything of a model is and at which offset it lies, in bytes: the ledger's and the layout's numbers.

Homes of a model lie side by side in one address range, home after home. Its KV cache is
another range, block after block, as ``policies/memory/layout.py`` numbers them::

    | base blocks | lent by model 0: home 0 | home 1 | ... | lent by model 1: home 0 | ...

A lent home is mapped there whole, with what is left behind its last whole block
(OPT-13b: 602 MiB of pages hold 48 blocks of 12.5 MiB; the next home follows after 650 MiB).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from policies.memory.layout import KvLayout
from policies.memory.ledger import Partition
from policies.types import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """What one model occupies.

    Attributes:
        part: its pages.
        layout: its block ids.
        n_block_ids: block ids there are, with those that no page is ever behind.
        region_bytes: a layer as the model packs it, padding included.
        lenders: models of which it may borrow homes.
        lendable: its layers that may cycle, and with them the homes that may be lent; the
            others have no master copy and never leave.

    Raises:
        ValueError: something does not fit the pages that the ledger gave it.
    """

    shape: ModelShape
    part: Partition
    layout: KvLayout
    page_bytes: int
    block_tokens: int
    n_block_ids: int
    region_bytes: int
    lenders: frozenset[int]
    lendable: frozenset[int]

    def __post_init__(self) -> None:
        name, pages = self.shape.name, self.part
        if self.base_bytes > pages.kv_pages * self.page_bytes:
            raise ValueError(
                f"model {name}: {self.layout.n_base_blocks} base blocks need {self.base_bytes} bytes, its partition "
                f"has {pages.kv_pages} KV pages of {self.page_bytes} bytes; turn serving.share_idle_kv off"
            )
        if self.region_bytes > self.home_bytes:
            raise ValueError(
                f"model {name}: a packed layer of {self.region_bytes} bytes exceeds its home of {self.home_bytes}; "
                f"correct layer_bytes={self.shape.layer_bytes} of the model"
            )
        if unknown := self.lendable - set(range(self.shape.n_layers)):
            raise ValueError(
                f"model {name}: lendable layers {sorted(unknown)} are outside 0..{self.shape.n_layers - 1}"
            )

    @property
    def n_homes(self) -> int:
        """Homes, as many as layers."""
        return self.shape.n_layers

    @property
    def home_bytes(self) -> int:
        """One home: a layer, rounded up to pages."""
        return self.part.home_pages * self.page_bytes

    @property
    def torch_bytes(self) -> int:
        """What torch's own allocator may use: weights outside the layers, and activations."""
        return (self.part.other_pages + self.part.activation_pages) * self.page_bytes

    @property
    def block_bytes(self) -> int:
        """K and V of a block in every layer."""
        return self.shape.block_bytes(self.block_tokens)

    @property
    def base_bytes(self) -> int:
        """Pages under the base blocks. What the partition has beyond them, less than a block, stays unused."""
        return _round_up(self.layout.n_base_blocks * self.block_bytes, self.page_bytes)

    @property
    def kv_bytes(self) -> int:
        """Addresses of the whole KV range."""
        return _round_up(self.n_block_ids * self.block_bytes, self.page_bytes)

    def lent_offset(self, lender: int, home: int) -> int:
        """Offset in the KV range of a home that this model may borrow."""
        first, _ = self.layout.range_of(lender, home)
        return first * self.block_bytes


def measure(
    shapes: Sequence[ModelShape],
    parts: Sequence[Partition],
    layouts: Sequence[KvLayout],
    *,
    page_bytes: int,
    block_tokens: int,
    region_bytes: Sequence[int] | None = None,
    lenders: Sequence[Collection[int]] | None = None,
    lendable: Sequence[Collection[int]] | None = None,
) -> tuple[Extents, ...]:
    """Work out the extents of every model.

    Args:
        region_bytes: for each model a layer as it is packed; ``layer_bytes`` by default.
        lenders: for each model those of which it may borrow; all of them by default (temporal
            sharing), itself alone where each model has its own KV space (MPS, MIG).
        lendable: for each model the layers that may cycle; all of them by default.

    Raises:
        ValueError: something does not fit.
    """
    n_models = len(shapes)
    everyone = [range(n_models)] * n_models if lenders is None else lenders
    layers = [range(shape.n_layers) for shape in shapes] if lendable is None else lendable
    regions = [shape.layer_bytes for shape in shapes] if region_bytes is None else region_bytes
    return tuple(
        Extents(
            shape=shape,
            part=part,
            layout=layout,
            page_bytes=page_bytes,
            block_tokens=block_tokens,
            n_block_ids=_n_block_ids(layout, shapes),
            region_bytes=region,
            lenders=frozenset(whose),
            lendable=frozenset(which),
        )
        for shape, part, layout, region, whose, which in zip(
            shapes, parts, layouts, regions, everyone, layers, strict=True
        )
    )


def _n_block_ids(layout: KvLayout, lenders: Sequence[ModelShape]) -> int:
    ends = [
        first + stride * lender.n_layers
        for first, stride, lender in zip(layout.first_blocks, layout.strides, lenders, strict=True)
    ]
    return max([layout.n_base_blocks, *ends])


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
