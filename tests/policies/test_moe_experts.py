from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import HbmOverdrawn
from policies.memory.experts import (
    ExpertKv,
    ExpertLayout,
    ExpertResidency,
    Offload,
    OffloadCap,
    Reload,
    move_boundaries,
)
from policies.types import GIB, MIB
from tests.policies.vamp_worlds import KV_TOKEN_BYTES, gib, layout, residency

SMALL = ExpertLayout(n_layers=4, n_experts=16, n_active=2, gate_up_bytes=2, down_bytes=1, page_bytes=2)


@st.composite
def residencies(draw: st.DrawFn) -> ExpertResidency:
    shapes = ExpertLayout(
        n_layers=draw(st.integers(1, 6)),
        n_experts=draw(st.sampled_from([4, 6, 8, 16])),
        n_active=1,
        gate_up_bytes=draw(st.integers(1, 8)),
        down_bytes=draw(st.integers(1, 8)),
        page_bytes=4,
    )
    cap = OffloadCap(
        fraction=draw(st.floats(0, 1)),
        multiple_shards=draw(st.integers(1, 4)),
        increment_groups=draw(st.integers(1, 5)),
    )
    most = ExpertResidency(shapes, cap).most_increments
    return ExpertResidency(shapes, cap, draw(st.integers(0, most)))


@pytest.mark.parametrize(("tp", "n_shards", "total_gib"), [(2, 2, 72.0), (4, 4, 36.0)])
def test_experts_of_a_rank_come_in_groups_of_6_mib(tp: int, n_shards: int, total_gib: float) -> None:
    # Golden: VAMP table I and section V.
    experts = layout(tp)
    assert (experts.group_shards, experts.group_bytes, experts.padding_bytes) == (n_shards, 6 * MIB, 0)
    assert gib(experts.total_bytes) == total_gib


def test_shards_that_never_fill_whole_pages_are_padded_and_the_padding_is_counted() -> None:
    odd = ExpertLayout(n_layers=2, n_experts=4, n_active=1, gate_up_bytes=5, down_bytes=3, page_bytes=4)
    assert odd.group_shards == 4  # 20 and 12 bytes are whole pages
    more_odd = ExpertLayout(n_layers=2, n_experts=3, n_active=1, gate_up_bytes=5, down_bytes=3, page_bytes=4)
    assert (more_odd.group_shards, more_odd.group_bytes) == (1, 12)
    assert more_odd.padding_bytes == 2 * 3 * 4


@pytest.mark.parametrize(("percent", "shards"), [(0, 0), (10, 48), (15, 76), (20, 100), (25, 128)])
def test_the_cap_is_a_share_of_a_layer_in_fours(percent: int, shards: int) -> None:
    # Golden: hardware.md 5.5, from VAMP table II.
    assert residency(2, percent).cap.shards(layout(2)) == shards


@pytest.mark.parametrize(("percent", "reclaimed_gib", "ratio"), [(15, 10.46, 2.30), (20, 13.77, 2.72)])
def test_memory_reclaimed_at_the_cap(percent: int, reclaimed_gib: float, ratio: float) -> None:
    # Golden: VAMP table II: 10.5 and 13.8 GiB, pools of 18.5 and 21.8 instead of 8.02 GiB.
    full = residency(2, percent, n_increments=residency(2, percent).most_increments)
    assert gib(full.offloaded_bytes) == pytest.approx(reclaimed_gib, abs=0.005)
    kv = ExpertKv(base_bytes=int(8.02 * GIB), block_bytes=544 * KV_TOKEN_BYTES)
    n_blocks = kv.n_blocks(full, full.n_increments)
    assert gib(n_blocks * kv.block_bytes) / 8.02 == pytest.approx(ratio, abs=0.005)


def test_staging_buffers_hold_the_largest_region_twice() -> None:
    # Golden: hardware.md 5.5: 456 MiB at 15 %, 600 MiB at 20 %.
    assert [residency(2, percent).buffer_bytes // MIB for percent in (15, 20)] == [456, 600]


def test_a_buffer_smaller_than_the_share_bounds_what_may_leave() -> None:
    assert OffloadCap(fraction=0.2, buffer_shards=51).shards(layout(2)) == 50


def test_increments_take_a_group_of_four_layers_and_then_go_on() -> None:
    small = ExpertResidency(SMALL, OffloadCap(fraction=0.5), 2)
    assert SMALL.group_shards == 2
    assert small.groups_of_increment(0) == ((1, 14), (2, 14), (3, 14), (1, 12))
    assert small.shards_by_layer == (0, 6, 6, 4)


def test_the_way_there_and_back_is_in_order() -> None:
    start = ExpertResidency(SMALL, OffloadCap(fraction=0.5))
    ops, there = move_boundaries(0, start, 3)
    assert [type(op) for op in ops] == [Offload] * 3
    assert [op.increment for op in ops] == [0, 1, 2]
    ops, back = move_boundaries(0, there, 1)
    assert [(type(op), op.increment) for op in ops] == [(Reload, 2), (Reload, 1)]
    assert back.n_increments == 1
    assert move_boundaries(0, back, 1) == ((), back)


def test_more_than_the_cap_allows_is_refused() -> None:
    start = ExpertResidency(SMALL, OffloadCap(fraction=0.5))
    with pytest.raises(HbmOverdrawn, match="4 increments of experts, at most 3"):
        move_boundaries(0, start, 4)
    with pytest.raises(ValueError, match=r"outside 0\.\.3"):
        move_boundaries(0, start, -1)


@given(residencies())
def test_boundaries_of_layers_differ_by_one_group_at_most_and_the_first_layer_stays_whole(now: ExpertResidency) -> None:
    first, *others = now.shards_by_layer
    assert first == 0
    if others:
        assert max(others) - min(others) in (0, now.layout.group_shards)
        assert max(others) <= now.cap.shards(now.layout)
    assert sum(others) == now.n_groups * now.layout.group_shards


@given(residencies())
def test_increments_add_up_to_the_regions_above_the_boundaries(now: ExpertResidency) -> None:
    groups = [group for n in range(now.n_increments) for group in now.groups_of_increment(n)]
    assert len(set(groups)) == len(groups) == now.n_groups
    for layer, n_shards in enumerate(now.shards_by_layer):
        starts = sorted(first for where, first in groups if where == layer)
        end = now.layout.n_experts
        assert starts == list(range(end - n_shards, end, now.layout.group_shards))


@given(residencies(), st.integers(0, 500), st.integers(1, 40))
def test_block_ids_of_increments_follow_one_another_and_lose_less_than_a_block(
    now: ExpertResidency, base_bytes: int, block_bytes: int
) -> None:
    kv = ExpertKv(base_bytes=base_bytes, block_bytes=block_bytes)
    end = kv.n_base_blocks
    for increment in range(now.n_increments):
        first, n_blocks = kv.range_of(now, increment)
        assert first == end
        end += n_blocks
    assert end == kv.n_blocks(now, now.n_increments)
    assert 0 <= base_bytes + now.offloaded_bytes - end * block_bytes < block_bytes
