"""How large the experts and the KV cache of a mixture of experts are, and at which offset everything lies.

A layer's experts that never leave are one pack, and each group that may leave is a pack of its own, with its own
physical memory. The KV cache is one address range: its base, then a place for every group, in the order in which
groups leave (``policies/memory/experts.py``), so that it grows and is cut at its end::

    | base | layer 1: last group | layer 2: last group | .. | layer 1: last but one | ..
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor.experts.packs import PackLayout
from executor.models.spec import DecoderSpec
from policies.memory.experts import ExpertKv, ExpertResidency

GroupId = tuple[int, int]
"""(layer, first expert)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExtents:
    """What a model's experts and its KV cache occupy.

    Attributes:
        spec: the model.
        start: its experts with none offloaded: how they divide into groups, and how far they may be.
        kv: its KV cache.

    Raises:
        ValueError: the groups are no packs of this model's experts, or the KV base ends within a page.
    """

    spec: DecoderSpec
    start: ExpertResidency
    kv: ExpertKv

    def __post_init__(self) -> None:
        name, layout = self.spec.shape.name, self.start.layout
        if self.group.n_bytes != layout.group_bytes:
            raise ValueError(
                f"model {name}: a group of {layout.group_shards} experts takes {self.group.n_bytes} bytes, "
                f"its layout says {layout.group_bytes}; correct gate_up_bytes and down_bytes of the model"
            )
        if self.kv.base_bytes % layout.page_bytes:
            raise ValueError(f"model {name}: {self.kv.base_bytes} bytes of KV are no pages of {layout.page_bytes}")

    @property
    def page_bytes(self) -> int:
        """Granularity of physical memory."""
        return self.start.layout.page_bytes

    @property
    def group(self) -> PackLayout:
        """One group."""
        experts, shape = self.spec.experts, self.spec.shape
        assert experts is not None, "the spec of a mixture of experts"
        return PackLayout(
            n_experts=self.start.layout.group_shards,
            hidden=shape.hidden,
            ffn=experts.ffn,
            dtype=self.spec.dtype,
            page_bytes=self.page_bytes,
        )

    @property
    def most_groups_a_layer(self) -> int:
        """Groups of a layer that may leave; of the first layer none may."""
        return self.start.cap.shards(self.start.layout) // self.start.layout.group_shards

    def fixed(self, layer: int) -> PackLayout:
        """The experts of a layer that never leave; perhaps none."""
        layout = self.start.layout
        n_leaving = self.most_groups_a_layer * layout.group_shards if layer else 0
        return replace(self.group, n_experts=layout.n_experts - n_leaving)

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """Every group that may leave, in the order of their turns."""
        increments = range(self.start.most_increments)
        return tuple(group for each in increments for group in self.start.groups_of_increment(each))

    def depth(self, group: GroupId) -> int:
        """How many groups of its layer leave before it."""
        layout = self.start.layout
        return (layout.n_experts - group[1]) // layout.group_shards - 1

    @property
    def region_bytes(self) -> int:
        """The largest region of a layer that may be offloaded, group after group; and a staging buffer."""
        return self.most_groups_a_layer * self.group.n_bytes

    @property
    def host_bytes(self) -> int:
        """Pinned host memory: a master copy of every group that may leave."""
        return len(self.groups) * self.group.n_bytes

    @property
    def n_block_ids(self) -> int:
        """Blocks of the KV cache at its largest."""
        return self.kv.n_blocks(self.start, self.start.most_increments)

    @property
    def kv_bytes(self) -> int:
        """Addresses of the KV cache."""
        return self.kv.base_bytes + len(self.groups) * self.group.n_bytes

    def kv_shape(self, n_blocks: int) -> tuple[int, ...]:
        """Shape of a KV cache of so many blocks, K and V on axis 2."""
        shape = self.spec.shape
        block_tokens = self.kv.block_bytes // shape.kv_bytes_per_token
        return self.spec.kv_shape(n_blocks, block_tokens)
