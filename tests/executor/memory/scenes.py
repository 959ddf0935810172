"""Two small models on one device, the ledger that plans for them, and a look at every byte that matters."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch

from executor.memory.device import DeviceMemory
from executor.memory.extents import Extents, measure
from executor.memory.homes import Lent, Loading, Resident, Slot
from executor.memory.masters import PeerMasters, Tier
from executor.memory.mover import AtOnce, Mover
from executor.memory.ranges import LendMode
from executor.vmm.books import Live
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.memory.layout import lay_out
from policies.memory.ledger import Ledger, partition
from policies.memory.ops import Op
from policies.memory.residency import Residency, Target
from policies.types import GB, HardwareProfile, LinkProfile, ModelShape
from tests.executor.vmm.worlds import open_cuda, open_cuda_peer

BLOCK_TOKENS = 4
HBM_PAGES = 128
PAGES = {"memfd": 4096, "cuda": 2 * 2**20}


def open_driver(world: str) -> FaultyDriver:
    """A watched driver of this kind of device."""
    if world == "cuda":
        return FaultyDriver(open_cuda())
    return FaultyDriver(MemfdDriver(HBM_PAGES * PAGES[world], PAGES[world]))


def open_peer(world: str) -> FaultyDriver:
    """A watched driver of a second device of this kind, with room for every master copy."""
    if world == "cuda":
        return FaultyDriver(open_cuda_peer())
    return FaultyDriver(MemfdDriver(HBM_PAGES * PAGES[world], PAGES[world]))


def hardware(page_bytes: int) -> HardwareProfile:
    link = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)
    return HardwareProfile(
        name="small", hbm_bytes=HBM_PAGES * page_bytes, hbm_bytes_per_s=GB, page_bytes=page_bytes, link=link
    )


def shapes(page_bytes: int) -> tuple[ModelShape, ModelShape]:
    """Two models that lend each other homes of awkward sizes.

    ``wide`` has blocks of 1.25 pages (lcm 5 pages) and homes of 3, so 2 blocks; ``deep`` has blocks of
    half a page and homes of 6 pages: 4 blocks of ``wide`` take 5 of them, and the next home follows at once.
    """
    wide = _shape("wide", n_layers=5, layer_bytes=3 * page_bytes - 96, block_bytes=5 * page_bytes // 4)
    deep = _shape("deep", n_layers=4, layer_bytes=5 * page_bytes + 64, block_bytes=page_bytes // 2)
    return wide, deep


def _shape(name: str, *, n_layers: int, layer_bytes: int, block_bytes: int) -> ModelShape:
    head_dim = block_bytes // (BLOCK_TOKENS * 2 * 2 * n_layers)  # K and V of two bytes a number
    return ModelShape(
        name=name, n_layers=n_layers, hidden=head_dim, n_heads=1, n_kv_heads=1, head_dim=head_dim, ffn=1, vocab=1,
        gated_mlp=False, layer_bytes=layer_bytes, total_bytes=n_layers * layer_bytes + 100, max_context_tokens=64,
    )  # fmt: skip


def open_books(page_bytes: int) -> tuple[Ledger, tuple[Extents, ...]]:
    """The ledger of both models, and what it comes to in bytes."""
    models, machine = shapes(page_bytes), hardware(page_bytes)
    parts = [partition(shape, machine, share=0.5, activation_bytes=page_bytes) for shape in models]
    layouts = [
        lay_out(
            shape,
            models,
            machine,
            block_tokens=BLOCK_TOKENS,
            n_base_blocks=part.kv_pages * page_bytes // shape.block_bytes(BLOCK_TOKENS),
        )
        for shape, part in zip(models, parts, strict=True)
    ]
    extents = measure(models, parts, layouts, page_bytes=page_bytes, block_tokens=BLOCK_TOKENS)
    return Ledger(HBM_PAGES, parts), extents


@dataclass(slots=True)
class Scene:
    """An opened memory with its books; ``kv_marks`` is what was written into held KV blocks."""

    driver: FaultyDriver
    ledger: Ledger
    memory: DeviceMemory
    mover: Mover = field(default_factory=AtOnce)
    kv_marks: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def fill(self) -> None:
        """Give every layer weights of its own, in its master copy and at home."""
        for model, extents in enumerate(self.memory.models):
            for layer in range(extents.n_homes):
                self.memory.master(model, layer).copy_(self.true_weights(model, layer))
                self.memory.weights(model, layer).copy_(self.memory.master(model, layer))
        self.mark_kv()

    def true_weights(self, model: int, layer: int) -> torch.Tensor:
        """What a layer has to hold, on the device."""
        return _random_bytes(100 * model + layer, self.memory.models[model].region_bytes, self.driver.device)

    def held_blocks(self, model: int) -> list[int]:
        """Block ids with pages behind them."""
        layout = self.memory.models[model].layout
        held = list(range(layout.n_base_blocks))
        for lender in range(len(self.memory.models)):
            for home, use in enumerate(self.memory.homes(lender).uses):
                if use == Lent(model):
                    first, n_blocks = layout.range_of(lender, home)
                    held += range(first, first + n_blocks)
        return held

    def mark_kv(self) -> None:
        """Write a mark of its own into every block that has none yet; forget those that are gone."""
        held = {(model, block) for model in range(len(self.memory.models)) for block in self.held_blocks(model)}
        for gone in self.kv_marks.keys() - held:
            del self.kv_marks[gone]
        for model, block in sorted(held - self.kv_marks.keys()):
            mark = self.kv_marks[model, block] = (31 * block + 7 * model + len(self.kv_marks)) % 251
            self.memory.kv(model)[block].fill_(mark)

    def plan(self, *targets: Target) -> tuple[Op, ...]:
        """Ops that the ledger plans."""
        return self.ledger.plan(targets, lambda _lender, _home: 0).ops

    def enact(self, *targets: Target) -> None:
        """Plan a change and carry it out."""
        plan = self.ledger.plan(targets, lambda _lender, _home: 0)
        self.memory.apply(plan.ops, self.mover)
        self.ledger.commit(plan)
        self.mark_kv()

    def land_all(self) -> None:
        """Publish every load."""
        for model in range(len(self.memory.models)):
            for layer, _ in self.ledger.residencies[model].loading:
                self.memory.apply(self.ledger.land(model, layer), self.mover)

    def check(self) -> None:
        """Hold the device against the ledger, and every byte against what must be there."""
        for model, residency in enumerate(self.ledger.residencies):
            assert residency_of(self.memory, model) == _unordered(residency)
            for layer, home in enumerate(residency.homes):
                if home is not None:
                    assert self.holds(model, home, layer), f"model {model} layer {layer} in home {home}"
        for (model, block), mark in self.kv_marks.items():
            assert bool((self.memory.kv(model)[block] == mark).all()), f"model {model} block {block}"

    def holds(self, model: int, home: int, layer: int) -> bool:
        return torch.equal(self.memory.weights(model, home), self.true_weights(model, layer))


@cache
def _random_bytes(seed: int, n_bytes: int, device: str) -> torch.Tensor:
    random = torch.Generator(device).manual_seed(seed)
    return torch.randint(256, (n_bytes,), dtype=torch.uint8, device=device, generator=random)


def residency_of(memory: DeviceMemory, model: int) -> tuple[object, ...]:
    """The homes as a residency has them, but for the order of loans and loads."""
    homes = memory.homes(model)
    uses = list(enumerate(homes.uses))
    return (
        tuple(homes.home_of(layer) for layer in range(len(uses))),
        homes.slots,
        {(home, use.borrower) for home, use in uses if isinstance(use, Lent)},
        {(use.layer, home) for home, use in uses if isinstance(use, Loading)},
        {home for home, use in uses if use == Slot()},
        sum(isinstance(use, Resident | Slot | Lent | Loading) for _, use in uses),
    )


def _unordered(residency: Residency) -> tuple[object, ...]:
    loans = {(loan.home, loan.borrower) for loan in residency.loans}
    return residency.homes, residency.slots, loans, set(residency.loading), set(residency.slots), residency.n_layers


@contextmanager
def open_scene(
    world: str = "memfd", mode: LendMode = LendMode.ALIAS, tier: Tier = "host", *, poison: bool = True
) -> Generator[Scene]:
    """Both models at home with weights of their own. At the end nothing may be left with the driver."""
    driver = open_driver(world)
    ledger, extents = open_books(PAGES[world])
    peer = open_peer(world) if tier == "peer" else None
    masters = PeerMasters(peer, driver.device) if peer else None
    memory = DeviceMemory(driver, extents, mode=mode, masters=masters, poison=poison)
    scene = Scene(driver, ledger, memory)
    scene.fill()
    try:
        yield scene
    finally:
        driver.set_fault(None)
        memory.close()
        driver.close()
        if peer:
            peer.close()
    assert driver.live == Live()
    assert peer is None or peer.live == Live()
