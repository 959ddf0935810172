"""Sessions served by a small mixture of experts on a real device, and a record of what the device was asked."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from executor.backend import ExecutorBackend
from executor.clock import HostClock
from executor.mixture.plan import plan_moe
from executor.mixture.serving import MoeServing, open_moe_serving
from executor.models.step import Row
from executor.vmm.books import Live
from executor.vmm.faulty import FaultyDriver
from executor.vmm.memfd import MemfdDriver
from policies.backend import Batch, Change, StepReport
from policies.costs import Coefficients
from policies.engine import Engine, Outcome
from policies.lane import Lane, TrueLengths
from policies.memory.ledger import Ledger
from policies.memory.ops import Op
from policies.moe_setup import ServedMoe, open_moe
from policies.policy import Policy
from policies.serving.tenancy import TemporalSharing
from policies.setup import Serving
from policies.types import GB, MIB, HardwareProfile, LinkProfile
from policies.vamp import Vamp
from tests.engine.recorder import Recorder
from tests.executor.moe.stage import PAGES, SIZES, Size, World, shape_of
from tests.executor.ranks.threads import open_ranks
from tests.executor.vmm.worlds import open_cuda
from traces.sessions.closed_loop import ClosedLoop
from traces.sessions.sessions import Session

SERVING = Serving(
    scheduler="vllm_v1",
    max_num_seqs=8,
    max_num_batched_tokens=96,
    chunked_prefill=True,
    prefix_caching=True,
    async_scheduling=False,
)
LENDS_FREELY = Vamp(
    max_offloaded_fraction=0.5,
    multiple_shards=2,
    increment_groups=3,
    coefficients=Coefficients(reload_us=0.1),
    restore=True,
    hysteresis_steps=3,
    spare_margin=0.0,
)
"""An offload costs next to nothing, and experts come back soon: much moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is served how, on which device; ``n_base_blocks``: KV blocks that the model has of its own at
    least; ``size``: of the model, else the world's."""

    world: World = "memfd"
    policy: Policy | None = None
    vmm: str = "range"
    n_base_blocks: int = 14
    serving: Serving = SERVING
    n_ranks: int = 1
    size: Size | None = None

    @property
    def lends(self) -> Policy:
        """The policy; without one named that which lends freely, about five blocks at a time on either device."""
        return self.policy or replace(LENDS_FREELY, increment_groups=3 if self.world == "memfd" else 1)

    @property
    def hardware(self) -> HardwareProfile:
        """Memory for more than the model."""
        link = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)
        n_bytes = 4 * GB if self.world == "cuda" else 64 * MIB
        return HardwareProfile(
            name="stage", hbm_bytes=n_bytes, hbm_bytes_per_s=GB, page_bytes=PAGES[self.world], link=link
        )

    def open(self) -> tuple[Ledger, Lane, ServedMoe]:
        """The books, with that many base blocks."""
        hardware, shape = self.hardware, shape_of(self.size or SIZES[self.world])
        page, activation = hardware.page_bytes, 64 * MIB if self.world == "cuda" else MIB
        layout = shape.experts(self.n_ranks, page)
        served = ServedMoe(shape=shape, n_ranks=self.n_ranks, share=0.9, activation_bytes=activation)
        ledger, lane = open_moe(
            served, hardware, self.serving, self.lends
        )  # with all the KV cache that there is room for
        spare = ledger.partitions[0].kv_pages - -(-self.n_base_blocks * lane.block_bytes // page)
        served = replace(served, activation_bytes=activation + spare * page)
        assert layout.n_layers == shape.n_layers
        return *open_moe(served, hardware, self.serving, self.lends), served


@dataclass(frozen=True, slots=True)
class Asked:
    """A step that the device was asked for, and its final hidden states."""

    rows: tuple[Row, ...]
    hidden: Tensor


@dataclass(slots=True)
class Record:
    """All that happened to the device, in order."""

    entries: list[Asked | tuple[Op, ...]] = field(default_factory=list[Asked | tuple[Op, ...]])

    def watch(self, lane: int, rows: Sequence[Row], hidden: Tensor) -> None:
        """Keep a step."""
        del lane
        kept = tuple(replace(row, blocks=tuple(row.blocks)) for row in rows)
        self.entries.append(Asked(kept, hidden.cpu().clone()))

    @property
    def asked(self) -> list[Asked]:
        """The steps."""
        return [entry for entry in self.entries if isinstance(entry, Asked)]

    @property
    def ops(self) -> list[Op]:
        """The ops of all changes."""
        return [op for entry in self.entries if not isinstance(entry, Asked) for op in entry]


class RecordedBackend:
    """Hands every call on and keeps the changes."""

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
        return self._inner.advance(until_ns)

    def landed(self) -> tuple[tuple[int, int], ...]:
        return self._inner.landed()


@dataclass(frozen=True, slots=True)
class Stage:
    """An opened device and the books beside it."""

    ledger: Ledger
    lane: Lane
    staged: MoeServing


@contextmanager
def open_stage(setting: Setting, record: Record | None = None) -> Generator[Stage]:
    """Open a device with NaN wherever nothing was written. At the end nothing may be left with the driver."""
    ledger, lane, served = setting.open()
    inner = open_cuda() if setting.world == "cuda" else MemfdDriver(setting.hardware.hbm_bytes, PAGES[setting.world])
    driver, n_threads = FaultyDriver(inner), torch.get_num_threads()
    torch.set_num_threads(1)
    plan = plan_moe(served, ledger, lane, setting.hardware, setting.serving, vmm=setting.vmm, weights={}, seed=7)
    others = [FaultyDriver(MemfdDriver(setting.hardware.hbm_bytes, PAGES["memfd"])) for _ in range(1, setting.n_ranks)]
    try:
        watch = record.watch if record else None
        with ExitStack() as held:
            ranks = held.enter_context(open_ranks(plan, others)).leader if others else None
            staged = held.enter_context(
                open_moe_serving(driver, plan, HostClock(), watch=watch, ranks=ranks, poison=True)
            )
            yield Stage(ledger, lane, staged)
        assert driver.live == Live()
    finally:
        torch.set_num_threads(n_threads)
        driver.close()


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a run: what the device was asked, what was decided, and what every request said."""

    record: Record
    journal: Recorder
    said: Mapping[int, Sequence[int]]


def serve(setting: Setting, sessions: Iterable[Session], n_at_once: int | None = None) -> Served:
    """Serve sessions to their end."""
    record, journal = Record(), Recorder()
    loop = ClosedLoop(sessions, max_context_tokens=128, n_at_once=n_at_once)
    with open_stage(setting, record) as stage:
        engine = Engine(
            lanes=[stage.lane],
            truth=TrueLengths(),
            policy=setting.lends,
            tenancy=TemporalSharing(quantum_s=1.0),
            ledger=stage.ledger,
            backend=RecordedBackend(stage.staged.backend, record),
            hardware=setting.hardware,
            journal=journal,
            max_steps=20_000,
            follow=loop.follow,
        )
        assert engine.run(loop.first_turns()) is Outcome.DONE
        said = {row.request_id: tuple(stage.staged.lane.token_ids(row.request_id)) for row in journal.requests}
    return Served(record, journal, said)
