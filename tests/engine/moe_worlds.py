"""A mixture-of-experts model of three tiny layers, served in closed loops: a block is a group of experts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.costs import Coefficients
from policies.engine import Engine, Outcome
from policies.lane import TrueLengths
from policies.lru_experts import LruExperts
from policies.moe import DeltaNet, MoeShape
from policies.moe_setup import ServedMoe, all_away, open_moe
from policies.policy import Policy
from policies.registry import POLICIES
from policies.serving.tenancy import TemporalSharing
from policies.setup import Serving
from policies.types import NS_PER_S, HardwareProfile, LinkProfile, Work
from policies.vamp import Vamp
from sim.compute.moe import LayerTimes
from sim.compute.routing import uniform
from sim.moe_backend import MoeBackend
from sim.on_demand import OnDemandExperts
from sim.staging import StagedExperts, StagingLink
from tests.engine.recorder import Recorder
from traces.sessions.closed_loop import ClosedLoop
from traces.sessions.sessions import Session, Turn

PAGE_BYTES = 32
HBM_BYTES = PAGE_BYTES << 8
MAX_CONTEXT = 400
GATE_UP_BYTES, DOWN_BYTES = 64, 32
BLOCK_TOKENS = 16
BLOCK_BYTES = BLOCK_TOKENS * 6  # one group: three layers with two bytes a token
DELTA = DeltaNet(n_layers=2, layer_params=1, n_key_heads=1, n_value_heads=1, head_dim=1, conv_width=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSetup:
    """All that a run depends on but its sessions."""

    policy: Policy
    serving: Serving
    n_base_blocks: int = 8
    is_hybrid: bool = False
    fetch_ns: int = 20  # of a page
    n_at_once: int | None = None
    leaps: bool = True

    @property
    def shape(self) -> MoeShape:
        """Two tokens of state a layer are no more than a block, so that hybrid models have blocks of 16 tokens, too."""
        return MoeShape(
            name="tiny", n_layers=3, hidden=1, n_heads=1, head_dim=1, vocab=1, attention_params=1,
            kv_bytes_per_layer=6 if self.is_hybrid else 2, n_kv_shards=1, norm_params=0, router_params=0,
            shared_params=0, n_experts=8, n_active=2, expert_ffn=1, expert_params=48, gate_up_bytes=GATE_UP_BYTES,
            down_bytes=DOWN_BYTES, total_params=3 * 8 * 48 + 3, max_context_tokens=MAX_CONTEXT,
            delta_net=DELTA if self.is_hybrid else None, dtype_bytes=1,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinearLayers:
    """A ``MoeCompute`` whose every layer takes as long as the others."""

    def layers(self, work: Work) -> Seq[LayerTimes]:
        mixer_ns = 40 + work.n_tokens + work.decode_context_tokens // 8
        return [LayerTimes(mixer_ns=mixer_ns, gate_up_ns=20, down_ns=10, reduce_ns=5)] * 3

    def head_ns(self, work: Work) -> int:
        return 10 + work.n_sampled

    def host_ns(self, work: Work) -> int:
        return 10 + work.n_seqs


def serve(setup: MoeSetup, sessions: Seq[Session]) -> tuple[Outcome, Recorder]:
    """Run from the start; how it ended, and its tables."""
    rate = PAGE_BYTES * NS_PER_S // setup.fetch_ns
    link = LinkProfile(h2d_bytes_per_s=rate, d2h_bytes_per_s=rate, joint_bytes_per_s=rate)
    hardware = HardwareProfile(
        name="tiny", hbm_bytes=HBM_BYTES, hbm_bytes_per_s=NS_PER_S, page_bytes=PAGE_BYTES, link=link
    )
    layout = setup.shape.experts(1, PAGE_BYTES)
    n_pages = layout.total_bytes // PAGE_BYTES + 2 + setup.n_base_blocks * BLOCK_BYTES // PAGE_BYTES
    share = n_pages * PAGE_BYTES / HBM_BYTES
    served = ServedMoe(shape=setup.shape, n_ranks=1, share=share, activation_bytes=1)
    ledger, lane = open_moe(served, hardware, setup.serving, setup.policy)
    loop = ClosedLoop(sessions, max_context_tokens=MAX_CONTEXT, n_at_once=setup.n_at_once)
    if isinstance(setup.policy, Vamp) and setup.policy.foresight and lane.asking is not None:
        lane.asking.foresees = loop.is_continued
    recorder = Recorder()
    engine = Engine(
        lanes=[lane],
        truth=TrueLengths(),
        policy=setup.policy,
        tenancy=TemporalSharing(quantum_s=1.0),
        ledger=ledger,
        backend=_backend(setup, rate),
        hardware=hardware,
        journal=recorder,
        leaps=setup.leaps,
        max_steps=20_000,
        use_every_ns=700,
        follow=loop.follow,
    )
    outcome = engine.run(loop.first_turns())
    assert sum(ledger.holdings().values()) == HBM_BYTES // PAGE_BYTES
    return outcome, recorder


def _backend(setup: MoeSetup, rate: int) -> MoeBackend:
    layout, on_demand = setup.shape.experts(1, PAGE_BYTES), None
    if isinstance(setup.policy, LruExperts):
        away = all_away(layout, setup.policy.cap)
        on_demand = OnDemandExperts(
            uniform(8, 2), n_layers=2, n_resident=8 - max(away.shards_by_layer), shard_bytes=96, bytes_per_s=rate
        )
    return MoeBackend(
        LinearLayers(),
        StagedExperts(0, GATE_UP_BYTES, DOWN_BYTES, StagingLink(bytes_per_s=rate)),
        group_bytes=layout.group_bytes,
        group_shards=layout.group_shards,
        n_moe_layers=3,
        reload_bytes_per_s=rate,
        on_demand=on_demand,
    )


vamps = st.builds(
    Vamp,
    max_offloaded_fraction=st.sampled_from([0.5, 0.125, 0.0]),
    multiple_shards=st.just(1),
    increment_groups=st.integers(1, 3),
    coefficients=st.builds(
        Coefficients,
        reload_us=st.sampled_from([630.0, 0.0, 1e6]),
        preempt_us=st.sampled_from([500.0, 0.0]),
        queue_us=st.sampled_from([1000.0, 0.0]),
    ),
    increments=st.sampled_from(["one", "gap"]),
    measured=st.booleans(),
    foresight=st.booleans(),
    restore=st.booleans(),
    hysteresis_steps=st.integers(1, 5),
    spare_margin=st.sampled_from([0.0, 0.2]),
    patience_steps=st.sampled_from([1, 3, 1000]),
)

_SETTINGS: dict[str, SearchStrategy[Policy]] = {
    "vamp": vamps,
    "lru_experts": st.builds(LruExperts, max_offloaded_fraction=st.just(0.25), multiple_shards=st.just(1)),
}

OF_LAYERS = frozenset({"swap", "pie", "cpu_attention", "on_demand", "mirage_cpu", "fixed_share"})
"""Policies that move what such a model does not have: blocks on the host, layers that are alike."""

policies: SearchStrategy[Policy] = st.one_of(
    *(_SETTINGS.get(name, st.builds(policy)) for name, policy in POLICIES.items() if name not in OF_LAYERS), vamps
)
"""Every policy that can serve such a model, and VAMP twice as often."""


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, ...]:
    """Contexts that grow by what was answered and a little more, or start over."""
    made: list[Turn] = []
    n_context = 0
    for _ in range(draw(st.integers(1, 4))):
        n_new, n_output = draw(st.integers(1, 30)), draw(st.integers(1, 24))
        keeps = "all" if n_context and draw(st.booleans()) else "nothing"
        n_prompt = (n_context if keeps == "all" else 0) + n_new
        think_ns = draw(st.sampled_from([0, 30, 900, 9000])) if made else 0
        made.append(
            Turn(n_prompt_tokens=n_prompt, n_new_tokens=n_new, n_output_tokens=n_output, keeps=keeps, think_ns=think_ns)
        )
        n_context = n_prompt + n_output
    return tuple(made)


@st.composite
def cases(draw: st.DrawFn) -> tuple[MoeSetup, list[Session]]:
    """A setup with hardly any room, and sessions for it."""
    chunked = draw(st.booleans())
    serving = Serving(
        scheduler="vllm_v1",
        max_num_seqs=draw(st.sampled_from([4, 2, 1])),
        max_num_batched_tokens=draw(st.sampled_from([32, 64])) if chunked else MAX_CONTEXT,
        chunked_prefill=chunked,
        prefix_caching=draw(st.sampled_from([True, True, False])),
        async_scheduling=draw(st.booleans()),
        reserve_full_isl=draw(st.booleans()),
    )
    sessions = [
        Session(name=f"s{n}", start_ns=draw(st.sampled_from([0, 50, 2000])), turns=each)
        for n, each in enumerate(draw(st.lists(turns(), min_size=1, max_size=5)))
    ]
    setup = MoeSetup(
        policy=draw(policies),
        serving=serving,
        n_base_blocks=draw(st.integers(6, 16)),
        is_hybrid=draw(st.booleans()),
        fetch_ns=draw(st.sampled_from([2, 20])),
        n_at_once=draw(st.sampled_from([None, 2])),
    )
    return setup, sorted(sessions, key=lambda session: session.start_ns or 0)


def without_leaps(setup: MoeSetup) -> MoeSetup:
    """The same, step by step."""
    return replace(setup, leaps=False)
