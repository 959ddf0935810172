"""Two tiny models on a real device, an engine that serves them, and a record of what the device was asked."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from executor.backend import ExecutorBackend
from executor.clock import HostClock
from executor.memory.masters import Tier
from executor.models.step import Row
from executor.plan import Plan, plan
from executor.serving import Serving as Staged
from executor.serving import open_serving
from executor.vmm.books import Live
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.backend import Backend, Batch, Change, StepReport
from policies.engine import Engine, Outcome
from policies.journal import Journal
from policies.lane import Lane, TrueLengths
from policies.memory.ledger import Ledger
from policies.memory.ops import Op
from policies.mirage import Mirage
from policies.policy import Policy
from policies.ranks import of_rank
from policies.serving.tenancy import TemporalSharing
from policies.setup import ServedModel, Serving, open_lanes, open_ledger
from policies.types import GB, MIB, NS_PER_S, Arrival, HardwareProfile, LinkProfile, ModelShape
from tests.engine.recorder import Recorder
from tests.engine.worlds import arrival
from tests.executor.ranks.threads import Together, open_ranks
from tests.executor.vmm.worlds import open_cuda, open_cuda_peer

World = Literal["memfd", "cuda"]
PAGES: dict[World, int] = {"memfd": 4096, "cuda": 2 * MIB}
SERVING = Serving(block_tokens=16, max_num_seqs=8, swap_space_bytes=4 * MIB)
EVERY_STEP = TemporalSharing(quantum_s=1 / NS_PER_S)
"""Whoever could run takes turns step by step, so that what happens does not depend on how fast the machine is."""

LENDS_FREELY = Mirage(
    inactive_bound="cap", active_bound="cap", slots="auto", hysteresis_steps=2, patience_steps=1, spare_margin=0.0
)
"""No bound that is a duration."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of both models: a home is a few pages and a page a few blocks, on each device."""

    hidden: int
    head_dim: int
    dtype_bytes: int


SIZES: dict[World, Size] = {"memfd": Size(64, 32, 4), "cuda": Size(1024, 64, 2)}


def shape(name: str, size: Size, *, n_layers: int, gated: bool) -> ModelShape:
    """An OPT, or a Llama with half as many KV heads as heads."""
    hidden, ffn, vocab, positions = size.hidden, 2 * size.hidden, 128, 256
    if gated:
        layer = 3 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
        outer = (2 * vocab + 1) * hidden
    else:
        layer = 4 * (hidden * hidden + hidden) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
        outer = (vocab + positions + 2 + 2) * hidden
    n_heads = hidden // size.head_dim
    return ModelShape(
        name=name, n_layers=n_layers, hidden=hidden, n_heads=n_heads, n_kv_heads=n_heads // 2 if gated else n_heads,
        head_dim=size.head_dim, ffn=ffn, vocab=vocab, gated_mlp=gated, layer_bytes=layer * size.dtype_bytes,
        total_bytes=(n_layers * layer + outer) * size.dtype_bytes, max_context_tokens=positions,
        dtype_bytes=size.dtype_bytes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is served how, on which device.

    ``n_base_blocks``: KV blocks that each model has at least. ``size``: of both, else the world's.
    """

    world: World = "memfd"
    policy: Policy = LENDS_FREELY
    vmm: Literal["alias", "range"] = "range"
    tier: Tier = "host"
    n_ranks: int = 1
    size: Size | None = None
    n_base_blocks: int = 9
    serving: Serving = SERVING
    tenancy: TemporalSharing = EVERY_STEP
    leaps: bool = True

    @property
    def shapes(self) -> tuple[ModelShape, ModelShape]:
        """What one rank holds of an OPT of five layers and a Llama of four."""
        opt, llama = self.whole_shapes
        return of_rank(opt, self.n_ranks), of_rank(llama, self.n_ranks)

    @property
    def whole_shapes(self) -> tuple[ModelShape, ModelShape]:
        """Both models undivided."""
        size = self.size or SIZES[self.world]
        return shape("opt", size, n_layers=5, gated=False), shape("llama", size, n_layers=4, gated=True)

    @property
    def hardware(self) -> HardwareProfile:
        """As many pages as the models need, and a power of two of them so that shares are exact."""
        pages = sum(self._n_pages(each) for each in self.shapes)
        link = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)
        page = PAGES[self.world]
        return HardwareProfile(
            name="stage", hbm_bytes=page << pages.bit_length(), hbm_bytes_per_s=GB, page_bytes=page, link=link
        )

    @property
    def served(self) -> list[ServedModel]:
        """The models with their shares."""
        total = self.hardware.hbm_bytes // PAGES[self.world]
        return [
            ServedModel(shape=each, share=self._n_pages(each) / total, activation_bytes=self._activation_bytes)
            for each in self.shapes
        ]

    @property
    def _activation_bytes(self) -> int:
        return 64 * MIB if self.world == "cuda" else 1

    def _n_pages(self, model: ModelShape) -> int:
        page = PAGES[self.world]
        kv_bytes = self.n_base_blocks * model.block_bytes(self.serving.block_tokens)
        sizes = [model.other_bytes, self._activation_bytes, kv_bytes]
        return model.n_layers * -(-model.layer_bytes // page) + sum(-(-size // page) for size in sizes)


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that a device was asked for, and its final hidden states."""

    lane: int
    rows: tuple[Row, ...]
    hidden: Tensor


Entry = Asked | tuple[Op, ...]


@dataclass(slots=True)
class Record:
    """All that happened to the device, in order; ``reports`` and ``landed`` as the engine was told."""

    entries: list[Entry] = field(default_factory=list[Entry])
    reports: list[StepReport] = field(default_factory=list[StepReport])
    landed: list[tuple[tuple[int, int], ...]] = field(default_factory=list[tuple[tuple[int, int], ...]])

    def watch(self, lane: int, rows: Sequence[Row], hidden: Tensor) -> None:
        """Keep a step."""
        kept = tuple(replace(row, blocks=tuple(row.blocks)) for row in rows)
        self.entries.append(Asked(lane, kept, hidden.cpu().clone()))

    @property
    def asked(self) -> list[Asked]:
        """The steps."""
        return [entry for entry in self.entries if isinstance(entry, Asked)]

    @property
    def ops(self) -> list[Op]:
        """The ops of all changes."""
        return [op for entry in self.entries if not isinstance(entry, Asked) for op in entry]


class RecordedBackend:
    """Hands every call on and keeps what was asked and told."""

    def __init__(self, inner: ExecutorBackend, record: Record) -> None:
        self._inner, self._record = inner, record

    @property
    def now_ns(self) -> int:
        return self._inner.now_ns

    def apply(self, change: Change) -> None:
        self._inner.apply(change)
        self._record.entries.append(change.ops)

    def submit(self, lane: int, batch: Batch, n_steps: int, stop_ns: int, n_ahead: int = 0) -> None:
        self._inner.submit(lane, batch, n_steps, stop_ns, n_ahead)

    def advance(self, until_ns: int | None) -> StepReport | None:
        report = self._inner.advance(until_ns)
        if report is not None:
            self._record.reports.append(report)
        return report

    def landed(self) -> tuple[tuple[int, int], ...]:
        landed = self._inner.landed()
        self._record.landed.append(landed)
        return landed


@dataclass(frozen=True, slots=True)
class Stage:
    """An opened device and the books beside it."""

    setting: Setting
    driver: FaultyDriver
    ledger: Ledger
    lanes: list[Lane]
    staged: Staged
    together: Together | None = None

    def engine(self, backend: Backend, journal: Journal) -> Engine:
        """An engine on these models."""
        return make_engine(self.setting, self.ledger, self.lanes, backend, journal)


def make_engine(setting: Setting, ledger: Ledger, lanes: list[Lane], backend: Backend, journal: Journal) -> Engine:
    """Put an engine on a backend."""
    return Engine(
        lanes=lanes,
        truth=TrueLengths(),
        policy=setting.policy,
        tenancy=setting.tenancy,
        ledger=ledger,
        backend=backend,
        hardware=setting.hardware,
        journal=journal,
        leaps=setting.leaps,
        max_steps=20_000,
    )


def open_books(setting: Setting) -> tuple[Ledger, list[Lane]]:
    """Ledger and lanes of a setting."""
    ledger = open_ledger(setting.served, setting.hardware)
    preemption = setting.policy.preemption
    return ledger, open_lanes(setting.served, ledger, setting.hardware, setting.serving, preemption=preemption)


def plan_of(setting: Setting, ledger: Ledger, lanes: list[Lane]) -> Plan:
    """What the executor makes of it; every layer may be lent."""
    return plan(
        [replace(model, shape=whole) for model, whole in zip(setting.served, setting.whole_shapes, strict=True)],
        ledger,
        [lane.layout for lane in lanes],
        setting.hardware,
        setting.serving,
        vmm=setting.vmm,
        preemption=setting.policy.preemption,
        lendable=[range(each.n_layers) for each in setting.shapes],
        weights={},
        seed=7,
        tier=setting.tier,
        n_ranks=setting.n_ranks,
    )


@contextmanager
def open_stage(setting: Setting, record: Record | None = None) -> Generator[Stage]:
    """Open a device with NaN wherever nothing was written. At the end nothing may be left with the driver."""
    ledger, lanes = open_books(setting)
    inner = open_cuda() if setting.world == "cuda" else MemfdDriver(setting.hardware.hbm_bytes, PAGES[setting.world])
    driver, peer = FaultyDriver(inner), open_peer(setting)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        watch = record.watch if record else None
        wanted = plan_of(setting, ledger, lanes)
        others = [
            FaultyDriver(MemfdDriver(setting.hardware.hbm_bytes, PAGES["memfd"])) for _ in range(1, setting.n_ranks)
        ]
        with ExitStack() as held:
            together = held.enter_context(open_ranks(wanted, others)) if others else None
            ranks = together.leader if together else None
            staged = held.enter_context(
                open_serving(driver, wanted, HostClock(), peer=peer, watch=watch, ranks=ranks, poison=True)
            )
            yield Stage(setting, driver, ledger, lanes, staged, together)
            for each in (driver, *others):
                each.set_fault(None)
        assert driver.live == Live()
        assert peer is None or peer.live == Live()
    finally:
        torch.set_num_threads(n_threads)
        driver.close()
        if peer:
            peer.close()


def open_peer(setting: Setting) -> FaultyDriver | None:
    """The device that keeps master copies, where the setting has one."""
    if setting.tier == "host":
        return None
    if setting.world == "cuda":
        return FaultyDriver(open_cuda_peer())
    return FaultyDriver(MemfdDriver(setting.hardware.hbm_bytes, PAGES["memfd"]))


def burst(n_requests: int = 10, n_prompt: int = 40, n_output: int = 24) -> list[Arrival]:
    """Requests for both models that come at once and do not fit together; no two alike."""
    return [
        arrival(number, n_prompt=n_prompt + 5 * number, n_output=n_output + 3 * number, model=number % 2)
        for number in range(n_requests)
    ]


def serve(setting: Setting, arrivals: Sequence[Arrival]) -> tuple[Record, Recorder, dict[int, Sequence[int]]]:
    """Serve requests to their end: what the device was asked, what was decided, and what every request says."""
    record, journal = Record(), Recorder()
    with open_stage(setting, record) as stage:
        backend = RecordedBackend(stage.staged.backend, record)
        assert stage.engine(backend, journal).run(iter(arrivals)) is Outcome.DONE
        said = {
            each.request.request_id: stage.staged.lanes[each.request.model].token_ids(each.request.request_id)
            for each in arrivals
        }
    return record, journal, said
