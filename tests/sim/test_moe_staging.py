from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import NS_PER_S
from sim.compute.moe import LayerTimes
from sim.staging import StagedExperts, StagingLink

NEVER_NS = 2**62
GATE_UP, DOWN = 20, 10


def staged(shards: Sequence[int], *, rate: int, reduce: int = 0, splits: bool = True) -> StagedExperts:
    """Shards of 20 + 10 bytes over a link of ``rate`` bytes/ns, of which all-reduces ask ``reduce``."""
    link = StagingLink(bytes_per_s=rate * NS_PER_S, reduce_bytes_per_s=reduce * NS_PER_S, splits_regions=splits)
    made = StagedExperts(0, GATE_UP, DOWN, link)
    made.set_regions(shards)
    return made


def tick_by_tick(
    shards: Sequence[int], layers: Sequence[LayerTimes], n_steps: int, *, rate: int, reduce: int, splits: bool
) -> list[int]:
    """The same a nanosecond at a time: copies in order into two buffers, layers in order."""
    now, ends = 0, list[int]()
    order = [layer for layer, n in enumerate(shards) if n]
    n_read = 0
    there = [0] * (n_steps * len(order) + 2)  # bytes of each visit

    def flow(n_bytes: int) -> None:
        for visit in range(n_read, min(n_read + 2, len(there))):
            if order:
                moved = min(n_bytes, shards[order[visit % len(order)]] * (GATE_UP + DOWN) - there[visit])
                there[visit] += moved
                n_bytes -= moved

    def is_copying() -> bool:
        return any(
            there[visit] < shards[order[visit % len(order)]] * (GATE_UP + DOWN) for visit in range(n_read, n_read + 2)
        )

    def run(duration: int) -> None:
        nonlocal now
        for _ in range(duration):
            now += 1
            flow(rate)

    def all_reduce(duration: int) -> None:
        nonlocal now
        half = rate // 2
        if order and reduce > half and is_copying():
            duration = -(-duration * reduce // half)
        for _ in range(duration):
            now += 1
            flow(rate - min(reduce, half))

    for _ in range(n_steps):
        for layer, times in enumerate(layers):
            run(times.mixer_ns)
            all_reduce(times.reduce_ns)
            if shards[layer]:
                while there[n_read] < shards[layer] * (GATE_UP if splits else GATE_UP + DOWN):
                    run(1)
                run(times.gate_up_ns)
                while there[n_read] < shards[layer] * (GATE_UP + DOWN):
                    run(1)
                run(times.down_ns)
                n_read += 1
            else:
                run(times.gate_up_ns + times.down_ns)
            all_reduce(times.reduce_ns)
        ends.append(now)
    return ends


@given(st.data())
def test_the_recurrence_is_what_happens_nanosecond_by_nanosecond(data: st.DataObject) -> None:
    n_layers = data.draw(st.integers(1, 5))
    shards = data.draw(st.lists(st.integers(0, 4), min_size=n_layers, max_size=n_layers))
    part = st.integers(0, 30)
    layers = [LayerTimes(*(data.draw(part) for _ in range(4))) for _ in range(n_layers)]
    rate, reduce, splits = 2 * data.draw(st.integers(1, 4)), data.draw(st.integers(0, 9)), data.draw(st.booleans())
    n_steps = data.draw(st.integers(1, 4))
    made = staged(shards, rate=rate, reduce=reduce, splits=splits)
    ends_ns, stalls_ns = made.steps(0, [layers] * n_steps, 0, 0, NEVER_NS)
    assert ends_ns == tick_by_tick(shards, layers, n_steps, rate=rate, reduce=reduce, splits=splits)
    if not reduce:
        assert ends_ns[-1] == sum(stalls_ns) + n_steps * sum(times.all_ns for times in layers)


def test_a_step_that_the_link_binds_takes_as_long_as_its_bytes() -> None:
    # Closed form: 8 layers x 4 shards x 30 bytes at 2 bytes/ns = 480 ns, while all layers together compute for 80.
    made = staged([4] * 8, rate=2)
    ends_ns, _ = made.steps(0, [[LayerTimes(4, 2, 2, 1)] * 8] * 5, 0, 0, NEVER_NS)
    assert [after - before for before, after in pairwise(ends_ns)] == [480] * 4


def test_a_step_that_computation_binds_does_not_wait() -> None:
    made = staged([4] * 8, rate=100)
    ends_ns, stalls_ns = made.steps(0, [[LayerTimes(4, 2, 2, 1)] * 8] * 5, 3, 5, NEVER_NS)
    assert [after - before for before, after in pairwise(ends_ns)] == [8 * 10 + 8] * 4
    assert stalls_ns == [0] * 5


@pytest.mark.parametrize(("splits", "end_ns"), [(True, 60 + 5), (False, 60 + 30 + 5)])
def test_gate_up_may_start_before_the_down_projection_has_arrived(splits: bool, end_ns: int) -> None:
    # One shard at half a byte a nanosecond: 40 ns for gate and up, 60 ns for all of it. The GEMM takes 30 and 5 ns.
    link = StagingLink(bytes_per_s=NS_PER_S // 2, splits_regions=splits)
    made = StagedExperts(0, GATE_UP, DOWN, link)
    made.set_regions([1])
    if splits:
        end_ns = 40 + 30 + 5  # the down projection arrives meanwhile
    assert made.step(0, [LayerTimes(0, 30, 5, 0)], 0, 0)[0] == end_ns


def test_an_all_reduce_on_the_link_takes_its_part_from_copies() -> None:
    # At 4 bytes/ns an all-reduce of 100 ns at 1 byte/ns leaves 300 of 400 bytes: 600 bytes take 175 instead of 150 ns.
    made = staged([20], rate=4, reduce=1)
    assert made.step(0, [LayerTimes(0, 0, 0, 100)], 0, 0)[0] == 100 + (600 - 300) // 4 + 100


def test_an_all_reduce_gets_half_of_a_busy_link() -> None:
    made = staged([20], rate=4, reduce=4)
    assert made.step(0, [LayerTimes(0, 0, 0, 50)], 0, 0)[0] == 100 + (600 - 200) // 4 + 100


def test_what_has_arrived_stays_good_when_a_region_grows() -> None:
    made = staged([1, 1], rate=1)
    made.step(0, [LayerTimes(0, 0, 0, 0)] * 2, 0, 100)  # 60 bytes more arrive behind the last layer
    made.set_regions([2, 1])
    end_ns, stall_ns = made.step(160, [LayerTimes(0, 0, 0, 0)] * 2, 0, 0)
    assert (end_ns, stall_ns) == (160 + 30, 30)


def test_dense_layers_come_before_those_with_experts() -> None:
    link = StagingLink(bytes_per_s=NS_PER_S)
    made = StagedExperts(1, GATE_UP, DOWN, link)
    made.set_regions([1])
    assert made.step(0, [LayerTimes(25, 0, 0, 0), LayerTimes(1, 0, 0, 0)], 0, 0) == (30, 4)


def slowed(shards: int) -> StagedExperts:
    """One byte/ns, beside which computation takes a quarter longer."""
    made = StagedExperts(
        0, GATE_UP, DOWN, StagingLink(bytes_per_s=NS_PER_S, splits_regions=False, slowdown_ppm=250_000)
    )
    made.set_regions([shards])
    return made


def test_computation_takes_longer_while_copies_are_in_flight() -> None:
    # A region of 3,000 ns is there at 3,000; beside the copies behind it 2,000 ns of work take 2,500.
    assert slowed(100).step(0, [LayerTimes(0, 2_000, 0, 0)], 0, 0) == (5_500, 3_000)


def test_computation_goes_on_at_its_own_pace_when_copies_end() -> None:
    # Both buffers are full at 9,000. Of 1,000 ns of work at 8,500 the 500 ns until then do 400.
    made = slowed(100)
    made.step(0, [LayerTimes(0, 0, 0, 0)], 0, 0)
    assert made.step(3_000, [LayerTimes(1_000, 0, 0, 0)], 5_500, 0) == (9_600, 0)


def test_computation_beside_nothing_takes_what_it_takes() -> None:
    made = slowed(1)
    made.step(0, [LayerTimes(0, 0, 0, 0)], 0, 1_000)  # both buffers are full by then
    assert made.step(1_030, [LayerTimes(1_000, 0, 0, 0)], 0, 0) == (2_030, 0)


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes/s are out of range"):
        StagingLink(bytes_per_s=0)
