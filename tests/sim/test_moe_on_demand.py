from __future__ import annotations

from sim.compute.routing import uniform, zipf
from sim.on_demand import OnDemandExperts
from tests.policies.vamp_worlds import layout

MS = 10**6


def on_demand(exponent: float, n_resident: int) -> OnDemandExperts:
    routing = zipf(512, 10, exponent) if exponent else uniform(512, 10)
    shard_bytes = layout(2).shard_bytes
    return OnDemandExperts(
        routing, n_layers=47, n_resident=n_resident, shard_bytes=shard_bytes, bytes_per_s=50_000_000_000
    )


def test_with_every_expert_in_memory_nothing_waits() -> None:
    assert on_demand(0, 512).stall_ns(64) == 0


def test_a_step_waits_for_the_experts_that_it_misses_in_every_layer() -> None:
    # 64 tokens use 367 of 512 experts. 76 have no place: they miss about 76/512 of what is used, 3 MiB at 50 GB/s each.
    made = on_demand(0, 512 - 76)
    assert 40 <= made.n_missed(64) <= 60
    assert made.stall_ns(64) == 47 * -(-made.n_missed(64) * layout(2).shard_bytes // 50)


def test_fewer_are_missed_where_few_experts_are_popular() -> None:
    assert on_demand(1.2, 436).stall_ns(64) < on_demand(0, 436).stall_ns(64)


def test_a_large_batch_misses_every_expert_without_a_place() -> None:
    # So it waits as long as staging all of them takes, 225 ms at 50 GB/s, with nothing computed meanwhile.
    assert on_demand(0, 436).n_missed(8192) == 76
    assert abs(on_demand(0, 436).stall_ns(8192) / MS - 224.7) < 0.1
