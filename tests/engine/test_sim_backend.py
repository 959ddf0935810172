"""What the simulated world adds to the contract: what a mapping costs by mode, and copies at the link's speed."""

from __future__ import annotations

import pytest

from policies.backend import Batch, Change
from policies.memory.ops import Cycle, Lend, MoveBlocks
from sim.vmm import VmmMode
from tests.engine.bench import FAR_NS, Bench, decode, decode_work
from tests.engine.null_backend import Pace
from tests.engine.worlds import HBM_BYTES_PER_S, PAGE_BYTES, Setup, TinyModel, open_scene


def open_sim(vmm_mode: VmmMode = VmmMode.ALIAS, pace: Pace | None = None) -> Bench:
    """Layers of two pages; one page crosses the link in 20 ns."""
    models = (TinyModel(n_layers=6, layer_pages=2),) * 2
    scene = open_scene(Setup(models=models, world="sim", vmm_mode=vmm_mode, pace=pace or Pace(remap_ns=1000)))
    return Bench(scene.backend, scene.ledger)


def waits_ns(bench: Bench, batch: Batch) -> tuple[int, int]:
    """What the next step waits for swapped KV and for mappings."""
    bench.backend.submit(0, batch, 1, FAR_NS)
    report = bench.finish()
    return report.swap_ns, report.remap_ns


@pytest.mark.parametrize(("mode", "cost_ns"), [(VmmMode.ALIAS, 0), (VmmMode.RANGE, 1000), (VmmMode.PAGE, 2 * 1000)])
def test_each_mode_charges_a_lent_home_what_its_driver_calls_cost(mode: VmmMode, cost_ns: int) -> None:
    bench = open_sim(mode)
    bench.lend(3)
    assert waits_ns(bench, decode(decode_work())) == (0, 3 * cost_ns)
    bench.lend(1)
    assert waits_ns(bench, decode(decode_work())) == (0, 2 * cost_ns)


def test_blocks_moved_within_hbm_are_read_and_written_at_its_bandwidth() -> None:
    bench = open_sim()
    bench.backend.apply(Change((MoveBlocks(0, ((1, 2), (3, 4)), block_bytes=48),)))
    assert HBM_BYTES_PER_S == 10**9  # a byte a nanosecond: 2 blocks x 48 B, once in and once out
    assert waits_ns(bench, decode(decode_work())) == (0, 2 * 2 * 48)


@pytest.mark.parametrize(("n_in", "n_out", "swap_ns"), [(3, 0, 60), (0, 3, 60), (2, 2, 80), (1, 3, 80)])
def test_swapped_kv_takes_the_links_time_and_both_directions_share_it(n_in: int, n_out: int, swap_ns: int) -> None:
    # A page takes 20 ns alone; together they have no more than that in all, so 4 pages take 80 ns however they divide.
    batch = decode(decode_work(), swap_in=n_in * PAGE_BYTES, swap_out=n_out * PAGE_BYTES)
    assert waits_ns(open_sim(), batch) == (swap_ns, 0)


def test_swapped_kv_waits_behind_a_layer_that_is_being_loaded() -> None:
    bench = open_sim()
    bench.lend(1)
    bench.settle()
    bench.backend.advance(10_000)
    bench.lend(0)  # one layer of two pages, 40 ns
    assert waits_ns(bench, decode(decode_work(), swap_in=PAGE_BYTES)) == (40 + 20, 0)


def test_a_slot_that_is_lent_keeps_the_step_waiting_until_the_copy_into_it_has_ended() -> None:
    pace = Pace(fetch_ns=500)
    fetch_ns = 2 * 500
    bench = open_sim(pace=pace)
    bench.backend.apply(Change((Cycle(0, (0, 2, 4), (0, 2)), Lend(0, 4, 1))))
    bench.backend.submit(0, decode(decode_work()), 1, FAR_NS)
    report = bench.finish()
    # Layer 4 waited for its weights. The link then fetched layer 0 into slot 2, while layers 4 and 5 and the head ran.
    assert report.stall_ns[0] > 0
    layer_ns, head_ns = report.compute_ns[0] // 6, pace.rest_ns + decode_work().n_sampled
    bench.backend.apply(Change((Cycle(0, (0, 2, 4), (0,)), Lend(0, 2, 1))))
    assert waits_ns(bench, decode(decode_work())) == (0, fetch_ns - 2 * layer_ns - head_ns)
