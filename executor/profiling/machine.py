"""What is the device's own and no model's: its link, its driver's calls, its rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch
from torch import Tensor

from executor.profiling.specimen import Specimen
from executor.vmm.driver import Driver
from policies.types import NS_PER_S

COPY_BYTES, MATMUL_SIZE = 2**30, 8192
CPU_COPY_BYTES, CPU_MATMUL_SIZE = 2**22, 256
"""Of what rates are taken: large enough for a GPU's HBM and tensor cores; a CPU need only run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Bytes/s between HBM and the memory where master copies are, a layer at a time as weights are fetched.

    ``h2d`` is the direction of a fetch, ``d2h`` the other, be it to host memory or to a peer.

    Attributes:
        joint_bytes_per_s: both directions together, while both are busy.
    """

    h2d_bytes_per_s: int
    d2h_bytes_per_s: int
    joint_bytes_per_s: int
    copied_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VmmTimes:
    """Host time in ns of one driver call on a handle of ``n_bytes``, medians."""

    n_bytes: int
    create_ns: int
    map_ns: int
    allow_access_ns: int
    unmap_ns: int
    release_ns: int

    @property
    def remap_ns(self) -> int:
        """Unmap here, map there, allow access."""
        return self.unmap_ns + self.map_ns + self.allow_access_ns


def link_rates(model: Specimen) -> LinkRates:
    """Copy layers over the link: each direction alone, then both together."""
    streams, n = model.serving.streams, model.grid.n_copies
    memory = model.memory
    layers = [(memory.weights(0, layer), memory.master(0, layer)) for layer in sorted(memory.models[0].lendable)]
    (up, up_master), (down, down_master) = layers[0], layers[-1]

    def fetch() -> object:
        return streams.fetch(up, up_master)

    def save() -> object:
        return streams.save(down_master, down)

    last_ns(model, [fetch, save], 1)
    n_bytes = n * up.numel()
    (h2d_ns,), (d2h_ns,) = last_ns(model, [fetch], n), last_ns(model, [save], n)
    ends_ns = sorted(last_ns(model, [fetch, save], n))
    alone_ns = (ends_ns[1] - ends_ns[0]) / max(h2d_ns, d2h_ns)  # the share that the slower copied when it was alone
    joint_bytes = n_bytes * (2 - min(1.0, alone_ns))
    return LinkRates(
        h2d_bytes_per_s=_rate(n_bytes, h2d_ns),
        d2h_bytes_per_s=_rate(n_bytes, d2h_ns),
        joint_bytes_per_s=max(_rate(joint_bytes, ends_ns[0]), 1),
        copied_bytes=up.numel(),
    )


def last_ns(model: Specimen, copies: Sequence[Callable[[], object]], n: int) -> list[int]:
    """Ask for each copy n times, alternating; when the last of each is done, in ns from the beginning."""
    streams = model.serving.streams
    model.stopwatch.finish()
    began_ns = perf_counter_ns()
    marks: list[object] = []
    for _ in range(n):
        marks = [copy() for copy in copies]
    ended_ns: dict[int, int] = {}
    while len(ended_ns) < len(marks):
        for at, mark in enumerate(marks):
            if at not in ended_ns and streams.is_reached(mark):
                ended_ns[at] = perf_counter_ns() - began_ns
    streams.take_stalls()
    return [ended_ns[at] for at in range(len(marks))]


def vmm_times(driver: Driver, n_bytes: int, n_calls: int) -> VmmTimes:
    """Time the driver's calls on handles of one size (rounded up to pages), each on its own."""
    n_bytes = -(-n_bytes // driver.granularity_bytes) * driver.granularity_bytes
    times_ns: dict[str, list[int]] = {}

    def timed(name: str, call: Callable[[], int | None]) -> int:
        began_ns = perf_counter_ns()
        value = call()
        times_ns.setdefault(name, []).append(perf_counter_ns() - began_ns)
        return value or 0

    address = driver.reserve(n_bytes)
    try:
        for _ in range(n_calls):
            handle = timed("create", lambda: driver.create(n_bytes))
            timed("map", lambda handle=handle: driver.map(address, handle, n_bytes))
            timed("allow_access", lambda: driver.allow_access(address, n_bytes))
            timed("unmap", lambda: driver.unmap(address, n_bytes))
            timed("release", lambda handle=handle: driver.release(handle))
    finally:
        driver.free(address, n_bytes)
    return VmmTimes(n_bytes=n_bytes, **{f"{name}_ns": round(median(times)) for name, times in times_ns.items()})


def copy_bytes_per_s(model: Specimen) -> int:
    """Rate at which the device copies within its memory, bytes read and written."""
    n_bytes = COPY_BYTES if model.device.type == "cuda" else CPU_COPY_BYTES
    with model.serving.streams.computing():
        source = torch.zeros(n_bytes, dtype=torch.uint8, device=model.device)
        to = torch.empty_like(source)
    return _rate(2 * n_bytes, median(model.stopwatch.on_device(lambda: to.copy_(source))))


def flops_per_s(model: Specimen) -> int:
    """Rate of one large product of matrices at the weights' type."""
    size = MATMUL_SIZE if model.device.type == "cuda" else CPU_MATMUL_SIZE
    with model.serving.streams.computing():
        left: Tensor = torch.randn(size, size, device=model.device).to(model.kv.dtype)
    return _rate(2 * size**3, median(model.stopwatch.on_device(lambda: left @ left)))


def _rate(amount: float, ns: float) -> int:
    return round(amount * NS_PER_S / max(1, ns))
