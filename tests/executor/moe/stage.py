"""A small mixture of experts on a real device, and schedules of steps and changes to play on it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal

import torch
from torch import Tensor

from executor.clock import HostClock
from executor.lane import Watch
from executor.memory.expert_extents import ExpertExtents
from executor.memory.ranges import LendMode
from executor.mixture.plan import MoePlan
from executor.mixture.serving import MoeServing, open_moe_serving
from executor.models.spec import DecoderSpec, moe_spec_of
from executor.models.step import Row
from executor.ranks.shards import moe_of_rank
from executor.vmm.books import Live
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.memory.experts import ExpertKv, ExpertResidency, OffloadCap, move_boundaries
from policies.moe import MoeShape
from policies.types import GB, MIB, HardwareProfile, LinkProfile
from tests.executor.ranks.threads import Together, open_ranks
from tests.executor.vmm.worlds import open_cuda

World = Literal["memfd", "cuda"]
PAGES: dict[World, int] = {"memfd": 4096, "cuda": 2 * MIB}
BLOCK_TOKENS = 16
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Size:
    """Of a model; an expert's down fills half a page more than whole ones, so that two experts are a group, and a group
    holds two to five KV blocks."""

    hidden: int
    ffn: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype_bytes: int


SIZES: dict[World, Size] = {"memfd": Size(32, 48, 4, 2, 16, 4), "cuda": Size(1024, 512, 64, 32, 128, 2)}
DIVISIBLE = Size(32, 48, 4, 2, 16, 8)
"""In float64; its halves, a KV head each, are as large as ``SIZES["memfd"]``."""

DTYPES = {8: torch.float64, 4: torch.float32, 2: torch.bfloat16}


def shape_of(size: Size, n_layers: int = 5, n_experts: int = 16, n_active: int = 3) -> MoeShape:
    """Qwen3-MoE's layer at a small size."""
    n_heads, n_kv_heads, vocab = size.n_heads, size.n_kv_heads, 128
    hidden, expert = size.hidden, 3 * size.hidden * size.ffn
    attention = 2 * (n_heads + n_kv_heads) * size.head_dim * hidden + 2 * size.head_dim
    layer = attention + 2 * hidden + n_experts * (hidden + expert)
    return MoeShape(
        name="small moe", n_layers=n_layers, hidden=hidden, n_heads=n_heads, head_dim=size.head_dim, vocab=vocab,
        attention_params=attention, kv_bytes_per_layer=2 * n_kv_heads * size.head_dim * size.dtype_bytes,
        n_kv_shards=n_kv_heads, norm_params=2 * hidden, router_params=n_experts * hidden, shared_params=0,
        n_experts=n_experts, n_active=n_active, expert_ffn=size.ffn, expert_params=expert,
        gate_up_bytes=2 * hidden * size.ffn * size.dtype_bytes, down_bytes=hidden * size.ffn * size.dtype_bytes,
        total_params=n_layers * layer + (2 * vocab + 1) * hidden, max_context_tokens=MAX_TOKENS,
        dtype_bytes=size.dtype_bytes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is served on which device.

    ``fraction``: of a layer's experts that may leave, ``n_base_blocks``: KV blocks without them, ``size``: of the
    model, else the world's.
    """

    world: World = "memfd"
    mode: LendMode = LendMode.REMAP
    fraction: float = 0.5
    increment_groups: int = 3
    n_base_blocks: int = 12
    n_layers: int = 5
    n_ranks: int = 1
    size: Size | None = None

    @property
    def shape(self) -> MoeShape:
        """The model."""
        return shape_of(self.size or SIZES[self.world], self.n_layers)

    @property
    def whole(self) -> DecoderSpec:
        """The same in the executor's terms."""
        return moe_spec_of(self.shape, DTYPES[self.shape.dtype_bytes])

    @property
    def extents(self) -> ExpertExtents:
        """What a rank's part of it occupies."""
        page, shape = PAGES[self.world], self.shape
        spec = moe_of_rank(self.whole, self.n_ranks)
        block_bytes = spec.shape.block_bytes(BLOCK_TOKENS)
        layout = shape.experts(self.n_ranks, page)
        cap = OffloadCap(fraction=self.fraction, multiple_shards=2, increment_groups=self.increment_groups)
        base_bytes = -(-self.n_base_blocks * block_bytes // page) * page
        kv = ExpertKv(base_bytes=base_bytes, block_bytes=block_bytes)
        return ExpertExtents(spec=spec, start=ExpertResidency(layout, cap), kv=kv)

    @property
    def plan(self) -> MoePlan:
        """What the executor makes of it."""
        page = PAGES[self.world]
        link = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)
        hardware = HardwareProfile(name="stage", hbm_bytes=64 * GB, hbm_bytes_per_s=GB, page_bytes=page, link=link)
        return MoePlan(
            extents=self.extents, hardware=hardware, mode=self.mode, seed=7, max_rows=8, max_blocks=9,
            max_prefill_tokens=128, torch_bytes=GB, whole=self.whole, n_ranks=self.n_ranks,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """An opened device."""

    driver: FaultyDriver
    staged: MoeServing
    together: Together | None = None

    def run(self, rows: list[Row]) -> Tensor:
        """Run a step to its end: the residual stream behind the last layer."""
        passed = self.staged.forward.run(rows)
        self.staged.streams.take_stalls()
        self.staged.streams.wait(self.staged.streams.mark())
        return passed.hidden.cpu().clone()

    def move_to(self, n_increments: int) -> None:
        """Bring so many increments into the KV cache."""
        ops, _ = move_boundaries(0, self.staged.memory.experts, n_increments)
        self.staged.mover.carry_out(ops)


@contextmanager
def open_stage(setting: Setting, watch: Watch | None = None) -> Generator[Stage]:
    """Open a device with NaN wherever nothing was written. At the end nothing may be left with the driver."""
    inner = open_cuda() if setting.world == "cuda" else MemfdDriver(64 * MIB, PAGES[setting.world])
    driver, n_threads = FaultyDriver(inner), torch.get_num_threads()
    torch.set_num_threads(1)
    others = [FaultyDriver(MemfdDriver(64 * MIB, PAGES["memfd"])) for _ in range(1, setting.n_ranks)]
    try:
        with ExitStack() as held:
            together = held.enter_context(open_ranks(setting.plan, others)) if others else None
            ranks = together.leader if together else None
            staged = held.enter_context(
                open_moe_serving(driver, setting.plan, HostClock(), watch=watch, ranks=ranks, poison=True)
            )
            yield Stage(driver, staged, together)
            for each in (driver, *others):
                each.set_fault(None)
        assert driver.live == Live()
    finally:
        torch.set_num_threads(n_threads)
        driver.close()


def schedule(n_blocks: int, n_steps: int = 24, seed: int = 3) -> list[list[Row]]:
    """Steps of sequences that begin, go on in pieces, decode and end, with blocks out of so many."""
    random, free = Random(seed), list(range(1, n_blocks))
    live: list[tuple[list[int], int]] = []  # blocks, tokens computed
    steps: list[list[Row]] = []
    for _ in range(n_steps):
        random.shuffle(free)
        rows: list[Row] = []
        after: list[tuple[list[int], int]] = []
        left: list[int] = []  # by sequences that end: no other may write there in the same step
        for blocks, n_before in live:
            n_new = random.choice([1, 1, 1, 5])
            blocks = [*blocks, *(free.pop() for _ in range(-(-(n_before + n_new) // BLOCK_TOKENS) - len(blocks)))]
            rows.append(_row(random, n_new, n_before, blocks))
            if n_before + n_new > 60 or len(free) < 3:
                left += blocks
            else:
                after.append((blocks, n_before + n_new))
        if len(after) < 3 and len(free) >= 4:
            n_new = random.randint(2, 40)
            blocks = [free.pop() for _ in range(-(-n_new // BLOCK_TOKENS))]
            rows.append(_row(random, n_new, 0, blocks))
            after.append((blocks, n_new))
        live, free = after, [*free, *left]
        steps.append(rows)
    return [rows for rows in steps if rows]


def _row(random: Random, n_new: int, n_before: int, blocks: list[int]) -> Row:
    return Row(token_ids=[random.randrange(128) for _ in range(n_new)], n_before=n_before, blocks=tuple(blocks))
