from __future__ import annotations

import pytest

from policies.errors import HbmOverdrawn
from policies.serving.prefix_cache import Key
from policies.serving.vllm_v1.pool import PLACEHOLDER, FreeQueuePool, GroupKey

RANGE = (1, 0)


def _key(n_tokens: int, group: int = 0) -> GroupKey:
    prefix: Key = (None, "a", n_tokens)
    return group, prefix


def _with_cached(n_base: int, n_cached: int) -> FreeQueuePool:
    """A pool whose first ``n_cached`` blocks were used, published and released, the last first."""
    pool = FreeQueuePool(n_base)
    blocks = pool.take(n_cached)
    for nth, block in enumerate(blocks):
        pool.publish(block, _key(nth + 1))
    pool.release(reversed(blocks))
    return pool


def test_block_0_is_a_placeholder_that_nobody_gets() -> None:
    pool = FreeQueuePool(5)
    assert (pool.n_blocks, pool.n_free, pool.n_used) == (5, 4, 1)
    assert PLACEHOLDER not in pool.take(4)
    with pytest.raises(ValueError, match="n_base=1 blocks must be at least 2"):
        FreeQueuePool(1)


def test_released_blocks_are_taken_last() -> None:
    pool = FreeQueuePool(6)
    assert pool.take(3) == [1, 2, 3]
    pool.release([3, 1])
    assert pool.free_order() == [4, 5, 3, 1]


def test_a_cached_block_is_hit_until_it_is_taken() -> None:
    pool = _with_cached(4, 2)
    assert pool.free_order() == [3, 2, 1]
    assert pool.take(2) == [3, 2]
    assert pool.find(_key(1)) == 1
    assert pool.find(_key(2)) is None
    assert pool.n_cached == 1


def test_a_hit_takes_a_block_out_of_the_middle_of_the_queue() -> None:
    pool = _with_cached(6, 3)
    pool.hold([2])
    assert pool.free_order() == [4, 5, 3, 1]
    pool.hold([2])
    pool.release([2])
    assert not pool.is_free(2)
    pool.release([2])
    assert pool.free_order() == [4, 5, 3, 1, 2]


def test_of_two_blocks_with_one_content_the_older_is_found() -> None:
    pool = FreeQueuePool(4)
    older, newer = pool.take(2)
    pool.publish(older, _key(1))
    pool.publish(newer, _key(1))
    assert (pool.find(_key(1)), pool.n_cached) == (older, 1)
    pool.release([older])
    pool.take(2)
    assert pool.find(_key(1)) == newer


def test_groups_do_not_share_contents() -> None:
    pool = FreeQueuePool(4)
    (block,) = pool.take(1)
    pool.publish(block, _key(1, group=0))
    assert pool.find(_key(1, group=1)) is None


def test_free_cached_blocks_are_told_with_their_age_in_the_order_of_eviction() -> None:
    pool = FreeQueuePool(5)
    first, second, third = pool.take(3)
    pool.publish(first, _key(1))
    pool.publish(second, _key(2))
    pool.step = 10
    pool.release([second, third])
    pool.step = 12
    pool.release([first])
    pool.step = 20
    assert list(pool.idle()) == [(second, 10), (first, 8)]
    assert (pool.n_free, pool.n_empty) == (4, 2)


def test_the_takes_before_certain_blocks_are_counted_from_the_head() -> None:
    pool = FreeQueuePool(6)
    assert pool.n_takes_before({4, 5}, 10) == 3
    assert pool.n_takes_before({4, 5}, 2) == 2
    assert pool.n_takes_before(set(), 10) == 5


def test_lent_blocks_join_the_tail() -> None:
    pool = FreeQueuePool(3)
    pool.add_range(RANGE, 10, 2)
    assert pool.free_order() == [1, 2, 10, 11]
    assert pool.take(3) == [1, 2, 10]
    assert (pool.n_referenced(RANGE), pool.n_lent_used, pool.n_base_free) == (1, 1, 0)
    assert (pool.range_of(10), pool.range_of(2)) == (RANGE, None)


def test_a_range_goes_with_its_cached_blocks() -> None:
    pool = FreeQueuePool(3)
    pool.add_range(RANGE, 10, 2)
    blocks = pool.take(4)
    for nth, block in enumerate(blocks):
        pool.publish(block, _key(nth + 1))
    pool.release(blocks)
    assert pool.remove_range(RANGE) == 2
    assert pool.free_order() == [1, 2]
    assert (pool.n_blocks, pool.n_cached, pool.n_empty) == (3, 2, 0)


def test_a_range_in_use_stays() -> None:
    pool = FreeQueuePool(2)
    pool.add_range(RANGE, 10, 2)
    pool.take(2)
    with pytest.raises(HbmOverdrawn, match="1 of its 2 blocks are in use"):
        pool.remove_range(RANGE)
    assert pool.n_blocks == 4


def test_blocks_move_out_of_a_range_with_their_contents() -> None:
    pool = FreeQueuePool(4)
    pool.add_range(RANGE, 10, 2)
    blocks = pool.take(4)
    pool.publish(10, _key(1))
    pool.release([2, 1])
    assert blocks == [1, 2, 3, 10]
    assert pool.move_out(RANGE) == {10: 2}
    assert pool.find(_key(1)) == 2
    assert pool.free_order() == [11, 1, 10]
    assert (pool.n_referenced(RANGE), pool.n_lent_used) == (0, 0)


def test_blocks_that_find_no_place_elsewhere_do_not_move() -> None:
    pool = FreeQueuePool(3)
    pool.add_range(RANGE, 10, 2)
    pool.take(4)
    with pytest.raises(HbmOverdrawn, match="2 blocks to move, 0 free elsewhere"):
        pool.move_out(RANGE)
    assert pool.n_referenced(RANGE) == 2


@pytest.mark.parametrize(("range_id", "first"), [(RANGE, 30), ((1, 1), 11), ((1, 1), 2)])
def test_a_range_overlaps_nothing(range_id: tuple[int, int], first: int) -> None:
    pool = FreeQueuePool(3)
    pool.add_range(RANGE, 10, 2)
    with pytest.raises(ValueError, match="range"):
        pool.add_range(range_id, first, 5)
