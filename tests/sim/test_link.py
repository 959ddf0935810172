from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy import Environment, Event

from policies.types import GB, LinkProfile
from sim.link import Copy, Link
from sim.wire import Way, Wire

# MIRAGE section 3.2 (claims M044, M045): 427 GB/s reading alone, 366 GB/s in total at 1:1.
GH200 = LinkProfile(h2d_bytes_per_s=427 * GB, d2h_bytes_per_s=297 * GB, joint_bytes_per_s=366 * GB)


def gb_per_s(n_bytes: int, duration_ns: int) -> float:
    return n_bytes / duration_ns


def test_reads_alone_run_at_427_gb_a_second() -> None:
    assert gb_per_s(10 * GB, Link(GH200).h2d(10 * GB, at_ns=0).end_ns) == pytest.approx(427)


def test_writes_alone_run_at_their_own_limit() -> None:
    assert gb_per_s(10 * GB, Link(GH200).d2h(10 * GB, at_ns=0).end_ns) == pytest.approx(297)


def test_reads_and_writes_1_to_1_share_366_gb_a_second_and_reads_lose_a_seventh_of_the_total() -> None:
    link = Link(GH200)
    read, write = link.h2d(10 * GB, at_ns=0), link.d2h(10 * GB, at_ns=0)
    assert read.end_ns == write.end_ns
    total = gb_per_s(20 * GB, read.end_ns)
    assert total == pytest.approx(366)
    assert 1 - total / 427 == pytest.approx(0.143, abs=0.0005)  # M046: 366 / 427, "around 15 %"


def test_when_one_direction_finishes_the_other_goes_on_at_its_own_limit() -> None:
    link = Link(GH200)
    read, write = link.h2d(183 * GB, at_ns=0), link.d2h(183 * GB + 297 * GB, at_ns=0)
    assert read.end_ns == 10**9  # 183 GB at half of 366 GB/s
    assert write.end_ns == 2 * 10**9  # then 297 GB alone


def test_a_later_copy_the_other_way_postpones_one_under_way() -> None:
    link = Link(GH200)
    read = link.h2d(427 * GB, at_ns=0)
    assert read.end_ns == 10**9
    link.d2h(1000 * GB, at_ns=5 * 10**8)
    assert read.end_ns == 5 * 10**8 + -(-427 * 10**9 // (2 * 183))  # the second half at 183 GB/s


def test_what_one_direction_cannot_use_of_its_half_goes_to_the_other() -> None:
    link = Link(LinkProfile(h2d_bytes_per_s=80 * GB, d2h_bytes_per_s=10 * GB, joint_bytes_per_s=60 * GB))
    read, write = link.h2d(50 * GB, at_ns=0), link.d2h(10 * GB, at_ns=0)
    assert (read.end_ns, write.end_ns) == (10**9, 10**9)  # 50 + 10 of 60 GB/s


def test_two_directions_that_fit_side_by_side_do_not_slow_each_other() -> None:
    link = Link(LinkProfile(h2d_bytes_per_s=3 * GB, d2h_bytes_per_s=2 * GB, joint_bytes_per_s=5 * GB))
    read, write = link.h2d(3 * GB, at_ns=0), link.d2h(2 * GB, at_ns=0)
    assert (read.end_ns, write.end_ns) == (10**9, 10**9)


def test_copies_of_one_direction_run_one_after_the_other_in_the_order_of_the_calls() -> None:
    link = Link(GH200)
    copies = [link.h2d(427 * GB, at_ns) for at_ns in (0, 10, 3 * 10**9)]
    assert [(copy.start_ns, copy.end_ns) for copy in copies] == [
        (0, 10**9),
        (10**9, 2 * 10**9),
        (3 * 10**9, 4 * 10**9),
    ]


def test_computation_beside_a_copy_is_slowed_while_the_copy_lasts() -> None:
    link = Link(GH200, slowdown_ppm=100_000)
    link.h2d(427 * GB, at_ns=10**9)  # moves from 1 s to 2 s
    assert link.compute_until(0, 5 * 10**8) == 5 * 10**8
    assert link.compute_until(10**9, 5 * 10**8) == 10**9 + 55 * 10**7
    assert link.compute_until(0, 3 * 10**9) == pytest.approx(3 * 10**9 + 10**9 * 0.1 / 1.1, abs=1)
    assert Link(GH200).compute_until(0, 5) == 5


def test_a_negative_slowdown_is_refused() -> None:
    with pytest.raises(ValueError, match="slowdown_ppm=-1 must be >= 0"):
        Link(GH200, slowdown_ppm=-1)


Order = tuple[Way, int, int]
"""Direction, nanoseconds after the order before, bytes."""

orders = st.lists(st.tuples(st.sampled_from(Way), st.integers(0, 60), st.integers(1, 400)), min_size=1, max_size=12)
rates = st.integers(1, 12).map(lambda rate: rate * GB)


@settings(max_examples=300)
@given(orders, rates, rates, rates, st.integers(0, 300_000))
def test_the_arithmetic_of_the_link_is_what_processes_on_a_wire_do(
    orders: list[Order], h2d: int, d2h: int, joint: int, slowdown_ppm: int
) -> None:
    profile = LinkProfile(h2d_bytes_per_s=h2d, d2h_bytes_per_s=d2h, joint_bytes_per_s=joint)
    link = Link(profile, slowdown_ppm)
    copies: list[Copy] = []
    now_ns = 0
    for way, later_ns, n_bytes in orders:
        now_ns += later_ns
        request = link.h2d if way is Way.TO_DEVICE else link.d2h
        copies.append(request(n_bytes, now_ns))
    assert [copy.end_ns for copy in copies] == ends_on_a_wire(profile, orders)
    for way in Way:
        of_way = [copy for copy, order in zip(copies, orders, strict=True) if order[0] is way]
        assert all(before.end_ns <= after.start_ns < after.end_ns for before, after in pairwise(of_way))
    assert link.compute_until(now_ns, 100) == end_beside_on_a_wire(profile, slowdown_ppm, orders, now_ns)


def ends_on_a_wire(profile: LinkProfile, orders: list[Order]) -> list[int]:
    env = Environment()
    ends_ns = [0] * len(orders)
    env.process(place(env, Wire(env, profile), orders, ends_ns))
    env.run()
    return ends_ns


def end_beside_on_a_wire(profile: LinkProfile, slowdown_ppm: int, orders: list[Order], start_ns: int) -> int:
    env = Environment()
    wire = Wire(env, profile, slowdown_ppm)
    env.process(place(env, wire, orders, [0] * len(orders)))

    def compute() -> Generator[Event, Any, None]:
        yield env.timeout(start_ns)
        yield from wire.compute(100)

    env.run(env.process(compute()))
    return int(env.now)


def place(env: Environment, wire: Wire, orders: list[Order], ends_ns: list[int]) -> Generator[Event, Any, None]:
    def copy(index: int, way: Way, n_bytes: int) -> Generator[Event, Any, None]:
        yield from wire.copy(way, n_bytes)
        ends_ns[index] = int(env.now)

    for index, (way, later_ns, n_bytes) in enumerate(orders):
        yield env.timeout(later_ns)
        env.process(copy(index, way, n_bytes))
