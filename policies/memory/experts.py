"""Where the experts of a mixture-of-experts model live, and how their memory comes to serve as KV cache.

Each tensor-parallel rank holds a shard of every expert of every layer. Of a layer, low indices stay and a
contiguous region of high ones is offloaded: its pages belong to the KV cache, and its weights are staged
through buffers in every step. Groups leave one after the other, a layer at a time::

    turn        0  1  2  ..  L-1   L  L+1  ..        L eligible layers (the first MoE layer stays whole)
    layer       0  1  2  ..  L-1   0   1   ..        so that the boundaries of two layers differ by one group
    experts     the last group of each       the last but one

so how many groups are offloaded says where every boundary is. The KV cache grows by increments of a few
groups; what an increment holds beyond whole blocks, the next one makes up to a block.

Source: VAMP (arXiv 2609.13537) sections IV and V; which part is whose: docs/decisions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

from policies.errors import HbmOverdrawn

ROUNDING = 1e-9
"""So that 29 % of 100 are 29: a share is a binary number, which may lie just below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayout:
    """The expert weights of one rank: equal layers of equal shards, in two tensors a layer.

    Attributes:
        n_layers: layers with experts, the first of which stays whole.
        n_experts: experts, hence shards, of a layer (E).
        n_active: experts that a token is routed to (k).
        gate_up_bytes, down_bytes: of one shard in the two tensors.
        page_bytes: granularity of physical memory.

    Raises:
        ValueError: a number is out of range.
    """

    n_layers: int
    n_experts: int
    n_active: int
    gate_up_bytes: int
    down_bytes: int
    page_bytes: int

    def __post_init__(self) -> None:
        for field in ("n_layers", "n_experts", "n_active", "gate_up_bytes", "down_bytes", "page_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"experts: {field}={getattr(self, field)} must be at least 1")
        if self.n_active > self.n_experts:
            raise ValueError(f"experts: n_active={self.n_active} exceeds n_experts={self.n_experts}")

    @property
    def group_shards(self) -> int:
        """The fewest consecutive shards that fill whole pages in both tensors; 1 if no such group divides a layer."""
        n_shards = lcm(*(self.page_bytes // gcd(self.page_bytes, n) for n in (self.gate_up_bytes, self.down_bytes)))
        return n_shards if self.n_experts % n_shards == 0 else 1

    @property
    def shard_bytes(self) -> int:
        """Weights of one shard, without padding."""
        return self.gate_up_bytes + self.down_bytes

    @property
    def group_bytes(self) -> int:
        """Pages of one group: its shards, padded to whole pages where they do not fill them."""
        return sum(_round_up(self.group_shards * n, self.page_bytes) for n in (self.gate_up_bytes, self.down_bytes))

    @property
    def padding_bytes(self) -> int:
        """Bytes of all experts that padding costs."""
        n_groups = self.n_layers * self.n_experts // self.group_shards
        return n_groups * (self.group_bytes - self.group_shards * self.shard_bytes)

    @property
    def total_bytes(self) -> int:
        """Pages of all experts of the rank."""
        return self.n_layers * self.n_experts // self.group_shards * self.group_bytes

    @property
    def n_eligible_layers(self) -> int:
        """Layers that may be offloaded from: all but the first."""
        return self.n_layers - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadCap:
    """How far the experts of a model may be offloaded.

    Attributes:
        fraction: share of a layer's experts (r), 0..1.
        multiple_shards: the share is rounded down to a multiple of so many. Table II has 100 of 512 shards for
            20 %: not 102, which are whole groups too.
        buffer_shards: shards that a staging buffer holds (E_buffer); ``None``: as many as the share allows.
        increment_groups: groups by which the KV cache grows at a time.

    Raises:
        ValueError: a number is out of range.
    """

    fraction: float
    multiple_shards: int = 4
    buffer_shards: int | None = None
    increment_groups: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"max_offloaded_fraction={self.fraction} is outside [0, 1]")
        if self.multiple_shards < 1 or self.increment_groups < 1:
            raise ValueError(
                f"multiple_shards={self.multiple_shards}, increment_groups={self.increment_groups} must be at least 1"
            )
        if self.buffer_shards is not None and self.buffer_shards < 0:
            raise ValueError(f"buffer_shards={self.buffer_shards} must not be negative, or null")

    def shards(self, layout: ExpertLayout) -> int:
        """Shards of a layer that may be offloaded: whole groups."""
        n_shards = int(self.fraction * layout.n_experts + ROUNDING) // self.multiple_shards * self.multiple_shards
        if self.buffer_shards is not None:
            n_shards = min(n_shards, self.buffer_shards)
        return n_shards // layout.group_shards * layout.group_shards


@dataclass(frozen=True, slots=True)
class ExpertResidency:
    """How many groups of a model's experts are offloaded: where each boundary is follows from that.

    Args:
        layout: the experts.
        cap: how far they may be offloaded.
        n_increments: increments by which the KV cache has grown.

    Raises:
        ValueError: that is more than the cap allows.
    """

    layout: ExpertLayout
    cap: OffloadCap
    n_increments: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.n_increments <= self.most_increments:
            raise ValueError(f"{self.n_increments} increments of experts are outside 0..{self.most_increments}")

    @property
    def most_groups(self) -> int:
        """Groups of all layers that may be offloaded."""
        return self.layout.n_eligible_layers * (self.cap.shards(self.layout) // self.layout.group_shards)

    @property
    def most_increments(self) -> int:
        """Increments by which the KV cache may grow, the last of which may be a smaller one."""
        return -(-self.most_groups // self.cap.increment_groups)

    @property
    def n_groups(self) -> int:
        """Groups offloaded."""
        return min(self.n_increments * self.cap.increment_groups, self.most_groups)

    @property
    def n_groups_left(self) -> int:
        """Groups that may still be offloaded."""
        return self.most_groups - self.n_groups

    @property
    def offloaded_bytes(self) -> int:
        """Pages that serve as KV cache instead of holding experts."""
        return self.n_groups * self.layout.group_bytes

    @property
    def buffer_bytes(self) -> int:
        """HBM of the two staging buffers, each of which holds the largest region of a layer."""
        return 2 * self.cap.shards(self.layout) // self.layout.group_shards * self.layout.group_bytes

    @property
    def shards_by_layer(self) -> tuple[int, ...]:
        """Shards offloaded of each layer with experts: those of the highest indices."""
        return (0, *(n * self.layout.group_shards for n in _spread(self.n_groups, self.layout.n_eligible_layers)))

    def groups_of_increment(self, increment: int) -> tuple[tuple[int, int], ...]:
        """(layer, first expert) of each group that an increment consists of, in the order of their turns."""
        layout, n = self.layout, self.cap.increment_groups
        turns = range(increment * n, min((increment + 1) * n, self.most_groups))
        places = (divmod(turn, layout.n_eligible_layers) for turn in turns)
        return tuple((layer + 1, layout.n_experts - (depth + 1) * layout.group_shards) for depth, layer in places)


@dataclass(frozen=True, slots=True)
class Offload:
    """The experts of these groups are staged from now on; their pages become a KV range, that of an increment."""

    model: int
    increment: int
    groups: tuple[tuple[int, int], ...]
    """(layer, first expert) of each."""


@dataclass(frozen=True, slots=True)
class Reload:
    """The KV range of an increment ends, none of whose blocks is referenced; its experts come back to stay."""

    model: int
    increment: int
    groups: tuple[tuple[int, int], ...]


ExpertOp = Offload | Reload


def move_boundaries(
    model: int, now: ExpertResidency, n_increments: int
) -> tuple[tuple[ExpertOp, ...], ExpertResidency]:
    """Work out how the experts of a model get to so many increments: the last to leave comes back first.

    Returns:
        The ops in order, and the residency after them.

    Raises:
        HbmOverdrawn: the cap does not allow it.
        ValueError: the number is negative.
    """
    if n_increments > now.most_increments:
        raise HbmOverdrawn(f"model {model}: {n_increments} increments of experts, at most {now.most_increments}")
    after = ExpertResidency(now.layout, now.cap, n_increments)
    leaving = range(now.n_increments, n_increments)
    returning = range(now.n_increments - 1, n_increments - 1, -1)
    ops: list[ExpertOp] = [Offload(model, increment, now.groups_of_increment(increment)) for increment in leaving]
    ops += [Reload(model, increment, now.groups_of_increment(increment)) for increment in returning]
    return tuple(ops), after


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKv:
    """Which block ids the increments of one model have: one address range, grown and cut at its end.

    A block that straddles two increments belongs to the later one, which completes it. Nothing but the end of
    the last increment is lost, as increments come and go in order.

    Attributes:
        base_bytes: KV memory of the model's own.
        block_bytes: K and V of a block in every layer.
    """

    base_bytes: int
    block_bytes: int

    @property
    def n_base_blocks(self) -> int:
        """Blocks without any increment."""
        return self.base_bytes // self.block_bytes

    def range_of(self, residency: ExpertResidency, increment: int) -> tuple[int, int]:
        """First block id and number of blocks of an increment."""
        first, end = (self.n_blocks(residency, n) for n in (increment, increment + 1))
        return first, end - first

    def n_blocks(self, residency: ExpertResidency, n_increments: int) -> int:
        """Blocks with so many increments."""
        n_groups = min(n_increments * residency.cap.increment_groups, residency.most_groups)
        return (self.base_bytes + n_groups * residency.layout.group_bytes) // self.block_bytes


def _spread(n_groups: int, n_layers: int) -> tuple[int, ...]:
    """Groups of each layer when they leave a layer at a time."""
    if not n_layers:
        return ()
    each, more = divmod(n_groups, n_layers)
    return tuple(each + (layer < more) for layer in range(n_layers))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
