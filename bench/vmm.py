"""What virtual memory costs the host: each driver call by size, and a layer lent and taken back either way.

    python -m bench.vmm --out vmm.json           a GPU
    python -m bench.vmm --memfd --repeats 20     the stand-in on any Linux machine: does it run?

``call`` rows are of one handle of a size, ``open`` and ``lend`` rows of one OPT-13b that lends
to itself (nothing is copied, fences wait for nothing). Times are of the host, in microseconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns

import torch

from bench.fit_roofline import read_shape
from bench.machine import gpu, machine, write
from executor.memory.device import DeviceMemory
from executor.memory.extents import Extents, measure
from executor.memory.mover import Fetch, HomeId
from executor.memory.ranges import LendMode
from executor.vmm.driver import Driver
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.memory.layout import lay_out
from policies.memory.ledger import partition
from policies.memory.ops import Cycle, Lend, Load, Op, Withdraw
from policies.types import GIB, MIB, HardwareProfile, LinkProfile

HANDLE_MIB = (2, 6, 16, 64, 320, 640)
N_HANDLES = 8
LENT, SLOT = 20, 0
"""Layers that cycle: the home of the one is lent, that of the other is the slot."""

Row = dict[str, object]


def call_rows(driver: Driver, handle_mib: int, repeats: int) -> Iterator[Row]:
    """Time each call on a few handles of one size, again and again."""
    n_bytes = handle_mib * MIB
    times_us: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], int | None]) -> int:
        start_ns = perf_counter_ns()
        value = call()
        times_us.setdefault(name, []).append((perf_counter_ns() - start_ns) / 1000)
        return value or 0

    n_rounds = 1 + max(1, repeats // N_HANDLES)  # the first warms up
    for _ in range(n_rounds):
        start = timed("reserve", partial(driver.reserve, N_HANDLES * n_bytes))
        places = range(start, start + N_HANDLES * n_bytes, n_bytes)
        handles = [timed("create", partial(driver.create, n_bytes)) for _ in places]
        for place, handle in zip(places, handles, strict=True):
            timed("map", partial(driver.map, place, handle, n_bytes))
        for name, call in (("allow_access", driver.allow_access), ("unmap", driver.unmap)):
            for place in places:
                timed(name, partial(call, place, n_bytes))
        for handle in handles:
            timed("release", partial(driver.release, handle))
        timed("free", partial(driver.free, start, N_HANDLES * n_bytes))
    for name, values in times_us.items():
        yield {"row": "call", "call": name, "handle_mib": handle_mib, **_spread(values[len(values) // n_rounds :])}


class StandStill:
    """A mover that moves nothing: what remains is the host's own time."""

    def fence(self, homes: frozenset[HomeId], *, unmaps: bool) -> None:
        """Wait for nothing."""

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Copy nothing."""

    def fill(self, to: torch.Tensor, value: int) -> None:
        """Fill nothing."""

    def load(self, fetch: Fetch) -> None:
        """Fetch nothing."""

    def settle(self, fetch: Fetch) -> None:
        """Fetch nothing."""


def lend_rows(driver: Driver, mode: LendMode, repeats: int) -> Iterator[Row]:
    """Time opening, lending one layer's home, taking it back and publishing the load."""
    extents = opt_13b(driver)
    start_ns = perf_counter_ns()
    memory = DeviceMemory(driver, [extents], mode=mode)
    opened_us = (perf_counter_ns() - start_ns) / 1000
    with memory:
        times_us: dict[str, list[float]] = {}
        for nth in range(repeats + 3):
            for name, ops in CHANGES.items():
                start_ns = perf_counter_ns()
                memory.apply(ops, StandStill())
                if nth >= 3:
                    times_us.setdefault(name, []).append((perf_counter_ns() - start_ns) / 1000)
    n_calls = driver_calls(driver, extents, mode)
    yield {"row": "open", "mode": mode.value, "host_us": round(opened_us, 1), "n_driver_calls": n_calls["open"]}
    for name, values in times_us.items():
        yield {
            "row": "lend",
            "mode": mode.value,
            "change": name,
            "handle_mib": extents.home_bytes / MIB,
            "n_driver_calls": n_calls[name],
            **_spread(values),
        }


CHANGES: dict[str, Sequence[Op]] = {
    "lend": [Cycle(0, (SLOT, LENT), (SLOT,)), Lend(0, LENT, 0)],
    "take back": [Withdraw(0, LENT, 0), Load(0, LENT, LENT)],
    "publish": [Cycle(0, (), ())],
}
"""A layer's home is lent, and comes back."""


def driver_calls(driver: Driver, extents: Extents, mode: LendMode) -> dict[str, int]:
    """Count the calls of each change, apart from the timing."""
    counter = FaultyDriver(driver)
    counts: dict[str, int] = {}
    with DeviceMemory(counter, [extents], mode=mode) as memory:
        counts["open"] = n_before = counter.n_calls.total()
        for name, ops in CHANGES.items():
            memory.apply(ops, StandStill())
            counts[name] = counter.n_calls.total() - n_before
            n_before = counter.n_calls.total()
    return counts


def opt_13b(driver: Driver) -> Extents:
    """One OPT-13b in 30 GiB that may lend itself every home; two layers have master copies, for pinning is slow."""
    shape = read_shape("opt_13b")
    hardware = HardwareProfile(
        name="bench",
        hbm_bytes=30 * GIB,
        hbm_bytes_per_s=1,
        page_bytes=max(driver.granularity_bytes, 2 * MIB),
        link=LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1),
    )
    part = partition(shape, hardware, share=1, activation_bytes=GIB)
    n_base_blocks = part.kv_pages * hardware.page_bytes // shape.block_bytes(16)
    layout = lay_out(shape, [shape], hardware, block_tokens=16, n_base_blocks=n_base_blocks)
    (extents,) = measure([shape], [part], [layout], page_bytes=hardware.page_bytes, block_tokens=16)
    return replace(extents, lendable=frozenset({SLOT, LENT}))


def rows(driver: Driver, repeats: int) -> Iterator[Row]:
    """Measure everything."""
    for handle_mib in HANDLE_MIB:
        yield from call_rows(driver, handle_mib, repeats)
    for mode in LendMode:
        yield from lend_rows(driver, mode, repeats)


def _spread(values_us: Iterable[float]) -> Row:
    values = sorted(values_us)
    p99 = quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]
    return {"n": len(values), "median_us": round(median(values), 2), "p99_us": round(p99, 2)}


def _open(arguments: argparse.Namespace) -> Driver:
    if arguments.memfd:
        return MemfdDriver(64 * GIB, 2 * MIB)
    return import_module("executor.vmm.cuda").CudaDriver(arguments.device)


def main() -> None:
    """Print rows as they are measured, then write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0, help="index of the GPU")
    parser.add_argument("--memfd", action="store_true", help="use the stand-in instead of a GPU")
    parser.add_argument("--repeats", type=int, default=200, help="timed calls of each kind")
    parser.add_argument("--out", type=Path, help="JSON file for all rows")
    arguments = parser.parse_args()
    driver = _open(arguments)
    done: list[Row] = []
    for row in rows(driver, arguments.repeats):
        print(json.dumps(row), flush=True)
        done.append(row)
    page_mib = driver.granularity_bytes / MIB
    driver.close()
    if arguments.out:
        head = machine("memfd", "none") if arguments.memfd else machine(*gpu(arguments.device))
        write(arguments.out, head | {"page_mib": page_mib}, done)


if __name__ == "__main__":
    main()
