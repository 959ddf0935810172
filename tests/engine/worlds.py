"""Engines small enough that everything happens within a few steps: tiny layers, tiny pools, tiny pages."""

from __future__ import annotations

import mmap
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Literal

from policies.backend import Backend
from policies.engine import Engine, Outcome
from policies.journal import Journal
from policies.lane import Lane, TrueLengths
from policies.memory.ledger import Ledger
from policies.policy import Policy
from policies.recompute import Recompute
from policies.serving.tenancy import Mps, Sharing, TemporalSharing
from policies.serving.vllm_v0.scheduler import VllmV0
from policies.setup import ServedModel, Serving, open_lanes, open_ledger
from policies.types import NS_PER_S, Arrival, HardwareProfile, LinkProfile, ModelShape, Request, Work
from sim.backend import SimBackend
from sim.compute.base import ends_of
from sim.side_by_side.backend import SideBySideBackend
from sim.side_by_side.device import ONE, SharedDevice, SlicedDevice, Use
from sim.vmm import VmmCost, VmmMode
from tests.engine.kv_contents import KvContents
from tests.engine.null_backend import NullBackend, Pace
from tests.engine.page_table import PageTable
from tests.engine.recorder import Recorder

PAGE_BYTES = 32
MEMFD_PAGE_BYTES = mmap.PAGESIZE
MAX_CONTEXT = 64
HBM_BYTES_PER_S = 10**9
World = Literal["null", "sim", "memfd"]
WORLDS: tuple[World, ...] = ("null", "sim", "memfd") if find_spec("torch") else ("null", "sim")
"""``memfd``: the executor's backend on real pages, which needs torch."""
SERVING = Serving(block_tokens=4, max_num_seqs=4, max_num_batched_tokens=MAX_CONTEXT, swap_space_bytes=2**14)
TENANCY = TemporalSharing(quantum_s=500 / NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A model of few layers: ``layer_pages`` pages each, and KV pages for ``n_base_blocks`` blocks."""

    n_layers: int = 4
    layer_pages: int = 2
    n_base_blocks: int = 8
    priority: int | None = None

    def shape(self, name: str, page_bytes: int = PAGE_BYTES) -> ModelShape:
        """K and V take two bytes a token and layer where a page has 32, and so in proportion."""
        layer_bytes = self.layer_pages * page_bytes
        return ModelShape(
            name=name, n_layers=self.n_layers, hidden=1, n_heads=1, n_kv_heads=1,
            head_dim=page_bytes // PAGE_BYTES, ffn=1, vocab=1,
            gated_mlp=False, layer_bytes=layer_bytes, total_bytes=self.n_layers * layer_bytes + 1, dtype_bytes=1,
            max_context_tokens=MAX_CONTEXT,
        )  # fmt: skip

    def n_pages(self, block_tokens: int, page_bytes: int = PAGE_BYTES) -> int:
        """All of its pages: layers, one of embeddings, one of activations, KV cache."""
        kv_bytes = self.n_base_blocks * self.shape("any", page_bytes).block_bytes(block_tokens)
        return self.n_layers * self.layer_pages + 2 + -(-kv_bytes // page_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that a run depends on but its arrivals."""

    policy: Policy = field(default_factory=Recompute)
    models: tuple[TinyModel, ...] = (TinyModel(),)
    serving: Serving = SERVING
    tenancy: Sharing = TENANCY
    pace: Pace = field(default_factory=Pace)
    world: World = "null"
    vmm_mode: VmmMode = VmmMode.RANGE
    slowdown_ppm: int = 0
    leaps: bool = True
    lockstep: bool = True
    max_steps: int = 20_000
    use_every_ns: int = 700

    @property
    def is_spatial(self) -> bool:
        """Whether models run side by side."""
        return not isinstance(self.tenancy, TemporalSharing)

    @property
    def page_bytes(self) -> int:
        """Real pages have the machine's size."""
        return MEMFD_PAGE_BYTES if self.world == "memfd" else PAGE_BYTES

    def hardware(self) -> HardwareProfile:
        """A power of two of pages, so that every share is exact; one page crosses the link in ``fetch_ns``."""
        needed = sum(model.n_pages(self.serving.block_tokens, self.page_bytes) for model in self.models)
        rate = self.page_bytes * NS_PER_S // self.pace.fetch_ns
        return HardwareProfile(
            name="tiny",
            hbm_bytes=self.page_bytes << needed.bit_length(),
            hbm_bytes_per_s=HBM_BYTES_PER_S,
            page_bytes=self.page_bytes,
            link=LinkProfile(h2d_bytes_per_s=rate, d2h_bytes_per_s=rate, joint_bytes_per_s=rate),
            cpu_attention_bytes_per_s=2 * rate,
            cpu_layer_ns=1,
        )

    def served(self, hardware: HardwareProfile) -> list[ServedModel]:
        """The models with their shares."""
        n_pages = hardware.hbm_bytes // hardware.page_bytes
        return [
            ServedModel(
                shape=model.shape(str(index), hardware.page_bytes),
                share=model.n_pages(self.serving.block_tokens, hardware.page_bytes) / n_pages,
                activation_bytes=1,
                priority=model.priority,
            )
            for index, model in enumerate(self.models)
        ]


@dataclass(frozen=True, slots=True)
class LinearCompute:
    """A ``ComputeModel`` with the constants of a ``Pace``."""

    pace: Pace

    def layer_ns(self, work: Work) -> int:
        return self.pace.compute_ns(work) // 4

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Seq[int]:
        contexts = (work.decode_context_tokens + nth * work.n_decode_seqs for nth in range(n_steps))
        return [self.layer_ns(replace(work, decode_context_tokens=n_tokens)) for n_tokens in contexts]

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:
        return self.pace.rest_ns + work.n_sampled

    def host_ns(self, work: Work) -> int:
        return self.pace.rest_ns + work.n_seqs


class TinyDemand:
    """A ``Demand``: prompts keep the SMs busy, decoding HBM, each a little of the other."""

    def layer(self, work: Work) -> Use:
        return Use(900_000, 300_000) if work.n_prefill_tokens else Use(100_000, 800_000)

    def head(self, work: Work) -> Use:
        del work
        return Use(0, 500_000)


@dataclass(frozen=True, slots=True)
class Scene:
    """An engine about to run, and all that it was made of."""

    engine: Engine
    lanes: list[Lane]
    ledger: Ledger
    backend: Backend
    truth: TrueLengths
    is_spatial: bool

    def run(self, arrivals: Seq[Arrival]) -> Outcome:
        """Serve them to the end."""
        return self.engine.run(iter(arrivals))


def open_scene(setup: Setup, journal: Journal | None = None, truth: TrueLengths | None = None) -> Scene:
    """Put an engine together on one of the worlds."""
    hardware, truth = setup.hardware(), truth or TrueLengths()
    served = setup.served(hardware)
    ledger = open_ledger(served, hardware)
    swap_space_bytes = setup.serving.swap_space_bytes * setup.page_bytes // PAGE_BYTES
    serving = replace(setup.serving, swap_space_bytes=swap_space_bytes)
    lanes = open_lanes(
        served, ledger, hardware, serving, preemption=setup.policy.preemption, lends_across=not setup.is_spatial
    )
    if not setup.lockstep:
        for lane in lanes:
            if isinstance(lane.scheduler, VllmV0):  # V1 knows no other way
                lane.scheduler.decode_apart()
    backend = open_backend(setup, lanes, ledger)
    engine = Engine(
        lanes=lanes,
        truth=truth,
        policy=setup.policy,
        tenancy=setup.tenancy,
        ledger=ledger,
        backend=backend,
        hardware=hardware,
        journal=journal or Recorder(),
        leaps=setup.leaps,
        max_steps=setup.max_steps,
        use_every_ns=setup.use_every_ns,
    )
    return Scene(engine, lanes, ledger, backend, truth, setup.is_spatial)


def open_backend(setup: Setup, lanes: Seq[Lane], ledger: Ledger) -> Backend:
    """The world that the setup names."""
    if setup.world == "memfd":
        from tests.executor.backend.paced import open_paced

        return open_paced(
            setup.hardware(),
            lanes,
            ledger,
            setup.pace,
            vmm_mode=setup.vmm_mode,
            block_tokens=setup.serving.block_tokens,
        )
    if setup.world == "null":
        is_plain = not setup.serving.prefix_caching and setup.policy.preemption == "recompute"
        is_plain &= setup.serving.scheduler == "vllm_v0"  # with a step under way blocks change hands before it ends
        contents = KvContents(setup.serving.block_tokens) if is_plain else None
        table = PageTable(ledger, [lane.layout for lane in lanes])
        return NullBackend(setup.pace, table, contents, beside=setup.is_spatial)
    if setup.is_spatial:
        return _open_side_by_side(setup, lanes)
    return SimBackend(
        [lane.shape for lane in lanes],
        setup.hardware(),
        [LinearCompute(setup.pace)] * len(lanes),
        vmm=VmmCost(range_ns=setup.pace.remap_ns, page_ns=setup.pace.remap_ns),
        vmm_mode=setup.vmm_mode,
        slowdown_ppm=setup.slowdown_ppm,
    )


def _open_side_by_side(setup: Setup, lanes: Seq[Lane]) -> Backend:
    """Slices are as fast as the whole GPU here: what makes them slow is in the compute times."""
    is_shared, n_lanes = isinstance(setup.tenancy, Mps), len(lanes)
    interference = setup.tenancy.interference if isinstance(setup.tenancy, Mps) else 0
    return SideBySideBackend(
        [lane.shape for lane in lanes],
        setup.hardware(),
        [LinearCompute(setup.pace)] * n_lanes,
        [TinyDemand()] * n_lanes,
        SharedDevice(round(interference * ONE)) if is_shared else SlicedDevice(),
        vmm=VmmCost(range_ns=setup.pace.remap_ns, page_ns=setup.pace.remap_ns),
        vmm_mode=setup.vmm_mode,
        slowdown_ppm=setup.slowdown_ppm,
    )


def arrival(
    request_id: int,
    arrival_ns: int = 0,
    *,
    n_prompt: int = 4,
    n_output: int = 3,
    declared: int | None = None,
    model: int = 0,
    prompt: tuple[tuple[str, int], ...] | None = None,
) -> Arrival:
    """A request; unless it says otherwise it declares exactly what it will produce."""
    request = Request(
        request_id=request_id,
        model=model,
        arrival_ns=arrival_ns,
        n_prompt_tokens=n_prompt,
        max_output_tokens=declared or n_output,
        prompt=prompt,
    )
    return Arrival(request=request, n_output_tokens=n_output)


def serve(setup: Setup, arrivals: Seq[Arrival]) -> tuple[Outcome, Recorder]:
    """Run from the start; how it ended, and its tables."""
    recorder = Recorder()
    return open_scene(setup, recorder).run(arrivals), recorder
