from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
import torch

from executor.memory.device import POISON, DeviceMemory
from executor.memory.masters import PeerMasters, Tier
from executor.memory.mover import AtOnce, Fetch, HomeId
from executor.memory.ranges import LendMode
from executor.vmm.books import Live
from executor.vmm.driver import DriverError
from executor.vmm.faulty import Fault, FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.errors import HbmOverdrawn
from policies.memory.ops import Cycle, Lend, Load, MoveBlocks, Op, Withdraw
from policies.memory.residency import Loan, Target
from tests.executor.memory.scenes import BLOCK_TOKENS, PAGES, Scene, open_books, open_driver, open_peer, open_scene

WIDE, DEEP = 0, 1
NOTHING = Target()
LENT_TO_WIDE = Target(cycling=(0, 2), n_slots=1, loans=(Loan(2, WIDE),))
"""A target of ``deep``: layers 0 and 2 cycle through one slot, home 2 is KV cache of ``wide``."""

WORLDS = [pytest.param("memfd", id="memfd"), pytest.param("cuda", id="cuda", marks=pytest.mark.gpu)]
every_mode = pytest.mark.parametrize("mode", list(LendMode))
every_world = pytest.mark.parametrize("world", WORLDS)
every_tier = pytest.mark.parametrize("tier", get_args(Tier))


def addresses(scene: Scene) -> list[int]:
    memory = scene.memory
    return [
        view.data_ptr()
        for model, extents in enumerate(memory.models)
        for view in (
            memory.kv(model),
            *(memory.weights(model, home) for home in range(extents.n_homes)),
            *(memory.master(model, layer) for layer in sorted(extents.lendable)),
        )
    ]


@every_world
@every_mode
@every_tier
def test_a_lent_home_is_the_borrowers_kv_cache_and_comes_back_with_its_weights(
    world: str, mode: LendMode, tier: Tier
) -> None:
    with open_scene(world, mode, tier) as scene:
        lent = scene.memory.models[WIDE].layout.range_of(DEEP, 2)
        scene.enact(NOTHING, LENT_TO_WIDE)
        assert set(range(lent[0], lent[0] + lent[1])) <= set(scene.held_blocks(WIDE))
        scene.check()
        scene.enact(NOTHING, NOTHING)
        scene.land_all()
        scene.check()
        assert scene.memory.homes(DEEP).home_of(2) == 2


@every_mode
def test_lending_and_restoring_a_thousand_times_leaks_nothing_and_keeps_every_weight(mode: LendMode) -> None:
    """Rotations that lost memory and then overlapped live weights: vllm issue 21336."""
    with open_scene(mode=mode) as scene:
        mappings = scene.driver.mappings
        for _ in range(1000):
            scene.enact(NOTHING, LENT_TO_WIDE)
            scene.enact(NOTHING, NOTHING)
            scene.land_all()
        scene.check()
        assert scene.driver.mappings == mappings


@every_mode
@every_tier
def test_no_view_ever_moves(mode: LendMode, tier: Tier) -> None:
    """Captured graphs hold addresses: sglang pull request 32718."""
    with open_scene(mode=mode, tier=tier) as scene:
        before, held = addresses(scene), scene.memory.weights(DEEP, 2)
        scene.enact(NOTHING, LENT_TO_WIDE)
        assert addresses(scene) == before
        scene.enact(NOTHING, NOTHING)
        scene.land_all()
        assert addresses(scene) == before
        assert torch.equal(held, scene.true_weights(DEEP, 2))


@pytest.mark.parametrize(
    ("mode", "n_calls"), [(LendMode.ALIAS, {}), (LendMode.REMAP, {"unmap", "map", "allow_access"})]
)
def test_what_lending_a_home_asks_of_the_driver(mode: LendMode, n_calls: set[str]) -> None:
    with open_scene(mode=mode) as scene:
        before = scene.driver.n_calls.copy()
        scene.enact(NOTHING, LENT_TO_WIDE)
        assert scene.driver.n_calls - before == dict.fromkeys(n_calls, 1)


@every_world
@every_mode
def test_opening_that_any_driver_call_refuses_leaves_nothing_behind(world: str, mode: LendMode) -> None:
    """Handles that leaked when a later one failed: kvcached issue 364, surogate issue 117."""
    driver = open_driver(world)
    _, extents = open_books(PAGES[world])
    DeviceMemory(driver, extents, mode=mode).close()
    n_calls = sum(driver.n_calls[call] for call in ("reserve", "create", "map", "allow_access", "pin"))
    for nth in range(0, n_calls, 1 if world == "memfd" else 9):  # a GPU is slow to open
        driver.set_fault(Fault(nth=nth, out_of_memory=nth % 2 == 0))
        with pytest.raises(HbmOverdrawn if nth % 2 == 0 else DriverError):
            DeviceMemory(driver, extents, mode=mode)
        assert driver.live == Live()
    driver.set_fault(None)
    DeviceMemory(driver, extents, mode=mode).close()
    driver.close()


@every_world
def test_opening_that_the_peer_refuses_leaves_nothing_behind_on_either_device(world: str) -> None:
    driver, peer = open_driver(world), open_peer(world)
    _, extents = open_books(PAGES[world])
    masters = PeerMasters(peer, driver.device)
    DeviceMemory(driver, extents, masters=masters).close()
    for nth in range(0, sum(peer.n_calls[call] for call in ("reserve", "create", "map", "allow_access")), 3):
        peer.set_fault(Fault(nth=nth, out_of_memory=nth % 2 == 0))
        with pytest.raises(HbmOverdrawn if nth % 2 == 0 else DriverError):
            DeviceMemory(driver, extents, masters=masters)
        assert driver.live == peer.live == Live()
    driver.close()
    peer.close()


def test_a_peer_with_too_little_memory_is_named_with_what_is_wanted_of_it() -> None:
    driver, peer = open_driver("memfd"), FaultyDriver(MemfdDriver(20 * PAGES["memfd"], PAGES["memfd"]))
    _, extents = open_books(PAGES["memfd"])
    with pytest.raises(HbmOverdrawn, match=r"GiB of HBM and .* of memory of the peer cpu: create failed.*lend fewer"):
        DeviceMemory(driver, extents, masters=PeerMasters(peer, driver.device))
    assert driver.live == peer.live == Live()
    driver.close()
    peer.close()


def test_what_does_not_fit_is_said_with_its_size_and_the_mend() -> None:
    driver = open_driver("memfd")
    _, extents = open_books(PAGES["memfd"])
    with pytest.raises(HbmOverdrawn, match=r"wide, deep want 0\.\d+ GiB of HBM and .* host memory.*lower the shares"):
        DeviceMemory(driver, (*extents, *extents))
    driver.close()


def test_pages_that_the_driver_cannot_map_alone_are_refused() -> None:
    driver = open_driver("memfd")
    extents = [replace(each, page_bytes=each.page_bytes + 512) for each in open_books(PAGES["memfd"])[1]]
    with pytest.raises(ValueError, match=r"hardware\.page_bytes=4608"):
        DeviceMemory(driver, extents)
    driver.close()


@every_mode
def test_closing_while_something_is_lent_gives_everything_back(mode: LendMode) -> None:
    with open_scene(mode=mode) as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)  # open_scene checks what is left


def test_layers_at_rest_in_their_slots_have_their_own_weights_there() -> None:
    """Weights that were not reloaded in the right order: vllm issue 29341."""
    with open_scene() as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)
        (slot,) = scene.memory.homes(DEEP).slots
        scene.memory.weights(DEEP, slot).copy_(scene.memory.master(DEEP, 2))  # the last that was fetched
        scene.enact(NOTHING, NOTHING)
        scene.land_all()
        assert scene.memory.homes(DEEP).home_of(0) == slot
        scene.check()


@every_world
@every_mode
def test_blocks_move_between_own_and_lent_pages(world: str, mode: LendMode) -> None:
    with open_scene(world, mode) as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)
        first, n_blocks = scene.memory.models[WIDE].layout.range_of(DEEP, 2)
        moves = tuple((first + index, index) for index in range(n_blocks))
        scene.memory.apply([MoveBlocks(WIDE, moves, scene.memory.models[WIDE].block_bytes)], scene.mover)
        for old, new in moves:
            scene.kv_marks[WIDE, new] = scene.kv_marks[WIDE, old]
        scene.check()


def test_blocks_moved_in_the_change_that_ends_their_range_are_saved() -> None:
    with open_scene(mode=LendMode.REMAP) as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)
        first, _ = scene.memory.models[WIDE].layout.range_of(DEEP, 2)
        mark = scene.kv_marks[WIDE, first]
        move = MoveBlocks(WIDE, ((first, 0),), scene.memory.models[WIDE].block_bytes)
        scene.memory.apply([move, *scene.plan(NOTHING, NOTHING)], scene.mover)
        assert bool((scene.memory.kv(WIDE)[0] == mark).all())


class Recorder(AtOnce):
    """Notes what it is asked, and how many driver calls there had been by then."""

    def __init__(self, driver: FaultyDriver) -> None:
        self.log: list[tuple[str, object]] = []
        self._driver = driver
        self._n_before = driver.n_calls.total()

    def fence(self, homes: frozenset[HomeId], *, unmaps: bool) -> None:
        self.log.append((f"fence, {unmaps=}", set(homes)))
        assert self._driver.n_calls.total() == self._n_before

    def fill(self, to: torch.Tensor, value: int) -> None:
        self.log.append(("fill", value))
        super().fill(to, value)

    def load(self, fetch: Fetch) -> None:
        self.log.append(("load", (fetch.model, fetch.layer, fetch.home)))
        super().load(fetch)

    def settle(self, fetch: Fetch) -> None:
        self.log.append(("settle", (fetch.model, fetch.layer, fetch.home)))
        super().settle(fetch)


@every_mode
def test_homes_are_fenced_before_any_mapping_or_byte_changes(mode: LendMode) -> None:
    """Pages unmapped under a step in flight: kvcached issue 463, vllm pull requests 45615 and 45357."""
    unmaps = mode is LendMode.REMAP
    with open_scene(mode=mode) as scene:
        scene.mover = lending = Recorder(scene.driver)
        scene.enact(NOTHING, LENT_TO_WIDE)
        assert lending.log == [(f"fence, {unmaps=}", {(DEEP, 0), (DEEP, 2)}), ("fill", POISON)]
        scene.mover = restoring = Recorder(scene.driver)
        scene.enact(NOTHING, NOTHING)
        assert restoring.log == [
            (f"fence, {unmaps=}", {(DEEP, 2)}),
            ("fill", POISON),
            ("load", (DEEP, 2, 2)),
        ]
        scene.mover = landing = Recorder(scene.driver)
        scene.land_all()
        assert landing.log == [("fence, unmaps=False", {(DEEP, 0)}), ("settle", (DEEP, 0, 0))]


@every_mode
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_poisoned_kv_is_nan(mode: LendMode, dtype: torch.dtype) -> None:
    with open_scene(mode=mode) as scene:
        plan = scene.plan(NOTHING, LENT_TO_WIDE)
        scene.memory.apply(plan, scene.mover)
        first, n_blocks = scene.memory.models[WIDE].layout.range_of(DEEP, 2)
        assert bool(scene.memory.kv_blocks(WIDE, dtype)[first : first + n_blocks].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_poisoned_bytes_are_nan_in_wider_types_too(dtype: torch.dtype) -> None:
    assert bool(torch.full((64,), POISON, dtype=torch.uint8).view(dtype).isnan().all())


def test_without_the_switch_nothing_is_poisoned() -> None:
    with open_scene(poison=False) as scene:
        weights = scene.true_weights(DEEP, 2)
        scene.memory.apply(scene.plan(NOTHING, LENT_TO_WIDE), scene.mover)
        assert torch.equal(scene.memory.weights(DEEP, 2), weights)


@every_world
def test_kv_is_viewed_as_blocks_of_layers_of_k_and_v(world: str) -> None:
    with open_scene(world) as scene:
        extents = scene.memory.models[WIDE]
        blocks = scene.memory.kv_blocks(WIDE, torch.bfloat16)
        shape = extents.shape
        assert blocks.shape == (extents.n_block_ids, 5, 2, BLOCK_TOKENS, 1, shape.head_dim)
        assert blocks.data_ptr() == scene.memory.kv(WIDE).data_ptr()
        last = extents.layout.n_base_blocks - 1
        blocks[last, 4, 1].fill_(1.5)
        layer_bytes = extents.block_bytes // 5
        assert bool((scene.memory.kv(WIDE)[last, -layer_bytes // 2 :].view(torch.bfloat16) == 1.5).all())
        blocks[last].view(torch.uint8).fill_(scene.kv_marks[WIDE, last])


def test_kv_of_another_width_is_refused() -> None:
    with open_scene() as scene, pytest.raises(ValueError, match=r"torch\.float32 has 4 bytes, its KV 2"):
        scene.memory.kv_blocks(WIDE, torch.float32)


BAD_CHANGES: dict[str, tuple[str, Sequence[Op]]] = {
    "a home lent that holds weights": ("Lend.* makes no sense", [Lend(DEEP, 1, WIDE)]),
    "a loan ended that is none": ("Withdraw.* makes no sense", [Withdraw(DEEP, 1, WIDE)]),
    "a loan ended twice": (
        "Withdraw.* makes no sense",
        [Cycle(DEEP, (0, 2), (0,)), Lend(DEEP, 2, WIDE), Withdraw(DEEP, 2, WIDE), Withdraw(DEEP, 2, WIDE)],
    ),
    "a layer loaded that does not cycle": ("Load.* makes no sense", [Load(DEEP, 1, 1)]),
    "a slot that holds weights": ("Cycle.* makes no sense", [Cycle(DEEP, (0, 1), (2,))]),
    "a home left without use": (r"\(1, 1\)\] would serve as nothing", [Cycle(DEEP, (0, 1), (0,))]),
    "a block moved onto itself": ("named twice", [MoveBlocks(WIDE, ((1, 1),), 5120)]),
    "blocks of another model's size": ("has 5120 bytes", [MoveBlocks(WIDE, ((0, 1),), 2048)]),
    "a block moved to where no page is": (r"nothing behind blocks \[100\]", [MoveBlocks(WIDE, ((0, 100),), 5120)]),
}


@every_mode
@pytest.mark.parametrize(("why", "ops"), BAD_CHANGES.values(), ids=list(BAD_CHANGES))
def test_a_change_without_sense_is_refused_before_anything_is_touched(
    mode: LendMode, why: str, ops: Sequence[Op]
) -> None:
    """Pages released twice for want of a state of their own: vllm issue 36651."""
    with open_scene(mode=mode) as scene:
        scene.mover = recorder = Recorder(scene.driver)
        before = scene.driver.mappings
        with pytest.raises(ValueError, match=why):
            scene.memory.apply(ops, scene.mover)
        assert (scene.driver.mappings, recorder.log) == (before, [])
        scene.check()


def test_only_what_was_opened_as_lendable_is_lent_and_only_to_whom_it_may() -> None:
    driver = open_driver("memfd")
    wide, deep = open_books(PAGES["memfd"])[1]
    own = [
        replace(wide, lenders=frozenset({WIDE})),
        replace(deep, lenders=frozenset({DEEP}), lendable=frozenset({1, 2})),
    ]
    with DeviceMemory(driver, own) as memory:
        assert driver.live.n_pinned == 5 + 2
        with pytest.raises(KeyError):
            memory.master(DEEP, 0)
        with pytest.raises(ValueError, match=r"layers \[0\] have no master copy"):
            memory.apply([Cycle(DEEP, (0, 1), (0,)), Lend(DEEP, 1, DEEP)], AtOnce())
        with pytest.raises(ValueError, match=r"may borrow only of models \[0\]"):
            memory.apply([Cycle(DEEP, (1, 2), (1,)), Lend(DEEP, 2, WIDE)], AtOnce())
        memory.apply([Cycle(DEEP, (1, 2), (1,)), Lend(DEEP, 2, DEEP)], AtOnce())
    assert driver.live == Live()
    driver.close()


def test_a_refusal_is_followed_by_success_once_the_driver_recovers() -> None:
    """Growth that stayed impossible after a refusal: kvcached issue 498."""
    with open_scene(mode=LendMode.REMAP) as scene:
        scene.driver.set_fault(Fault(nth=0, call="map", out_of_memory=True))
        with pytest.raises(HbmOverdrawn, match="no memory for mappings"):
            scene.enact(NOTHING, LENT_TO_WIDE)
        scene.enact(NOTHING, LENT_TO_WIDE)
        scene.check()


def test_a_change_that_cannot_be_undone_either_ends_all_changes_but_not_closing() -> None:
    with open_scene(mode=LendMode.REMAP) as scene:
        ops = scene.plan(NOTHING, LENT_TO_WIDE)
        scene.driver.set_fault(Fault(nth=0, call="map", persists=True, out_of_memory=True))
        with pytest.raises(DriverError):
            scene.memory.apply(ops, scene.mover)
        scene.driver.set_fault(None)
        with pytest.raises(DriverError, match="no known state"):
            scene.memory.apply(ops, scene.mover)


class BrokenFetches(AtOnce):
    def load(self, fetch: Fetch) -> None:
        raise DriverError("cuMemcpyAsync", 700, f"CUDA_ERROR_ILLEGAL_ADDRESS at layer {fetch.layer}")


def test_a_mover_that_fails_once_weights_are_gone_ends_all_changes() -> None:
    with open_scene() as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)
        ops = scene.plan(NOTHING, NOTHING)
        with pytest.raises(DriverError, match="ILLEGAL_ADDRESS at layer 2"):
            scene.memory.apply(ops, BrokenFetches())
        with pytest.raises(DriverError, match="no known state"):
            scene.memory.apply(ops, AtOnce())


class BrokenMoves(AtOnce):
    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        raise DriverError("cuMemcpyAsync", 1, f"CUDA_ERROR_INVALID_VALUE: {to.shape} from {source.shape}")


def test_a_mover_that_fails_before_leaves_everything_as_it_was() -> None:
    with open_scene(mode=LendMode.REMAP) as scene:
        scene.enact(NOTHING, LENT_TO_WIDE)
        before = scene.driver.mappings, scene.memory.homes(DEEP)
        move = MoveBlocks(WIDE, ((1, 0),), scene.memory.models[WIDE].block_bytes)
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            scene.memory.apply([*scene.plan(NOTHING, NOTHING), move], BrokenMoves())
        assert (scene.driver.mappings, scene.memory.homes(DEEP)) == before
        scene.check()
        scene.enact(NOTHING, NOTHING)
