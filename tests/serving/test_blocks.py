from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import HbmOverdrawn
from policies.serving.blocks import BlockPool, SharedBytes
from policies.serving.prefix_cache import Key

A, B = (0, 3), (1, 7)
"""Two lent ranges: (lender, home)."""


def key(n_tokens: int) -> Key:
    return None, "stream", n_tokens


def test_blocks_are_taken_in_order_and_the_last_given_back_is_taken_first() -> None:
    pool = BlockPool(6)
    assert pool.take(4) == [0, 1, 2, 3]
    pool.release([1, 3])
    assert pool.free_order() == [3, 1, 4, 5]


def test_the_base_is_taken_before_lent_ranges_and_the_latest_range_drains() -> None:
    pool = BlockPool(2)
    pool.add_range(A, 100, 2)
    pool.add_range(B, 50, 2)
    assert pool.take(5) == [0, 1, 100, 101, 50]
    assert (pool.n_base_used, pool.n_lent_used, pool.n_referenced(A), pool.n_referenced(B)) == (2, 3, 2, 1)
    pool.release([50, 100, 0])
    assert pool.take(2) == [0, 100]
    assert pool.remove_range(B) == 0
    assert pool.n_free == 0


def test_first_fit_takes_what_came_free_last_wherever_it_lies() -> None:
    pool = BlockPool(2, base_first=False)
    pool.add_range(A, 100, 2)
    assert pool.take(3) == [0, 1, 100]
    pool.release([0, 100])
    assert pool.free_order() == [100, 0, 101]
    assert pool.take(1) == [100]
    assert (pool.n_referenced(A), pool.n_base_free) == (1, 1)


def test_blocks_know_their_range() -> None:
    pool = BlockPool(2)
    pool.add_range(A, 100, 2)
    pool.add_range(B, 50, 3)
    assert [pool.range_of(block) for block in (0, 1, 50, 52, 100, 101)] == [None, None, B, B, A, A]


def test_a_range_in_use_stays_as_it_is() -> None:
    pool = BlockPool(1)
    pool.add_range(A, 100, 2)
    pool.take(2)
    with pytest.raises(HbmOverdrawn, match="1 of its 2 blocks are in use"):
        pool.remove_range(A)
    assert (pool.n_blocks, pool.n_free, pool.n_referenced(A)) == (3, 1, 1)


@pytest.mark.parametrize(("first", "n_blocks"), [(0, 2), (100, 1), (99, 2), (101, 5), (90, 30)])
def test_a_range_that_overlaps_is_refused(first: int, n_blocks: int) -> None:
    pool = BlockPool(10)
    pool.add_range(A, 100, 3)
    with pytest.raises(ValueError, match="range"):
        pool.add_range(B, first, n_blocks)
    with pytest.raises(ValueError, match="range"):
        pool.add_range(A, 200, 1)


def test_moving_out_of_a_range_prefers_the_base() -> None:
    pool = BlockPool(3)
    pool.add_range(A, 100, 2)
    pool.add_range(B, 200, 2)
    pool.take(5)
    pool.release([1])
    assert pool.move_out(A) == {100: 1, 101: 200}
    assert (pool.n_referenced(A), pool.n_referenced(B)) == (0, 1)
    assert pool.free_order() == [100, 101, 201]


def test_moving_out_without_room_elsewhere_changes_nothing() -> None:
    pool = BlockPool(1)
    pool.add_range(A, 100, 2)
    pool.take(3)
    with pytest.raises(HbmOverdrawn, match="2 blocks to move, 0 free elsewhere"):
        pool.move_out(A)
    assert pool.n_referenced(A) == 2


def test_a_cached_block_moves_with_its_content() -> None:
    pool = BlockPool(1, caching=True)
    pool.add_range(A, 100, 1)
    pool.take(1)
    block = pool.obtain(key(4), 4)
    pool.release([0])
    assert pool.move_out(A) == {100: 0}
    assert pool.obtain(key(4), 4) == 0
    pool.release([0])
    pool.release([0])
    assert block == 100
    assert pool.cache is not None
    assert pool.cache.is_idle(0)


def test_returning_a_range_evicts_what_is_cached_in_it() -> None:
    pool = BlockPool(1, caching=True)
    pool.take(1)
    pool.add_range(A, 100, 3)
    pool.release([pool.obtain(key(4), 4), pool.obtain(key(8), 8)])
    assert pool.n_free == 3
    assert pool.remove_range(A) == 2
    assert pool.cache is not None
    assert (pool.n_free, len(pool.cache)) == (0, 0)


def test_with_caching_lent_blocks_join_at_the_tail() -> None:
    pool = BlockPool(3, caching=True)
    pool.add_range(A, 100, 2)
    assert pool.free_order() == [0, 1, 2, 100, 101]


def test_content_is_evicted_only_when_no_empty_block_is_left() -> None:
    pool = BlockPool(3, caching=True)
    pool.release([pool.obtain(key(4), 4)])
    assert pool.take(2) == [1, 2]
    assert pool.obtain(key(4), 4) == 0
    pool.release([0])
    assert pool.take(1) == [0]
    assert pool.cache is not None
    assert pool.cache.find(key(4)) is None


def test_a_full_block_gives_way_to_its_twin() -> None:
    pool = BlockPool(3, caching=True)
    first, second = pool.take(2)
    assert pool.complete(first, key(4), 4) == first
    assert pool.complete(second, key(4), 4) == first
    assert pool.free_order() == [1, 2]
    pool.release([first])
    assert pool.n_used == 1
    pool.release([first])
    assert pool.n_used == 0


def test_pools_of_one_budget_take_from_each_other() -> None:
    budget = SharedBytes(100)
    small, large = BlockPool(10, block_bytes=10, budget=budget), BlockPool(10, block_bytes=30, budget=budget)
    assert (small.n_free, large.n_free) == (10, 3)
    blocks = large.take(2)
    assert (small.n_free, large.n_free) == (4, 1)
    large.release(blocks)
    assert (small.n_free, large.n_free) == (10, 3)


def test_a_lent_range_enlarges_the_shared_budget_while_it_is_there() -> None:
    pool = BlockPool(2, block_bytes=10, budget=SharedBytes(20))
    pool.add_range(A, 100, 2)
    pool.take(3)
    pool.release([100])
    assert pool.n_free == 2
    pool.remove_range(A)
    assert pool.n_free == 0


@given(st.lists(st.integers(1, 5), max_size=20), st.randoms(use_true_random=False), st.booleans())
def test_a_budget_is_whole_again_when_everything_was_given_back(
    sizes: list[int], random: Random, caching: bool
) -> None:
    budget = SharedBytes(70)
    pool = BlockPool(10, caching=caching, block_bytes=7, budget=budget)
    held: list[list[int]] = []
    for size in sizes:
        if size <= pool.n_free:
            held.append(pool.take(size))
        elif held:
            pool.release(held.pop(random.randrange(len(held))))
        assert budget.free_bytes == 70 - 7 * pool.n_used
    for blocks in held:
        pool.release(blocks)
    assert budget.free_bytes == 70
