"""Random small setups and workloads: every policy, every ablation, every way of serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from policies.cpu_attention import CpuAttention
from policies.fixed_share import FixedShare
from policies.host_growth import HostGrowth
from policies.mirage import Mirage
from policies.mirage_cpu import MirageCpu
from policies.on_demand import OnDemand
from policies.pie import Pie
from policies.policy import Policy
from policies.recompute import Recompute
from policies.registry import POLICIES
from policies.serving.tenancy import SHARINGS, Mig, Mps, Sharing, TemporalSharing
from policies.setup import Serving
from policies.types import NS_PER_S, Arrival
from sim.vmm import VmmMode
from tests.engine.null_backend import Pace
from tests.engine.worlds import MAX_CONTEXT, WORLDS, Setup, TinyModel, World, arrival

thorough = settings(max_examples=5 * settings().max_examples)
"""For tests of the whole loop, where most of what can go wrong is rare."""

mirages = st.builds(
    Mirage,
    max_remapped_fraction=st.sampled_from([0.3, 0.5, 1.0]),
    layers_per_step=st.integers(1, 3),
    lend_from=st.sampled_from(["both", "inactive", "active"]),
    victim_order=st.sampled_from(["mru", "lru"]),
    active_bound=st.sampled_from(["no_stall", "paper", "cap"]),
    inactive_bound=st.sampled_from(["prefill", "cap", "no_stall"]),
    slots=st.sampled_from(["auto", "one", "two", "threshold"]),
    slot_threshold=st.integers(1, 3),
    placement=st.sampled_from(["nested", "even", "first_and_last", "contiguous"]),
    reversion=st.booleans(),
    spare_margin=st.sampled_from([0.0, 0.1, 0.5]),
    hysteresis_steps=st.integers(1, 4),
    patience_steps=st.integers(1, 4),
    activation=st.sampled_from(["stream", "migrate", "preempt_borrower"]),
    preemption=st.sampled_from(["recompute", "swap"]),
)

Scheduler = Literal["vllm_v0", "vllm_v1"]

growths = st.builds(
    HostGrowth,
    unit_blocks=st.integers(1, 3),
    max_host_bytes=st.sampled_from([2**8, 2**12]),
    spare_margin=st.sampled_from([0.0, 0.5]),
    hysteresis_steps=st.integers(1, 4),
    patience_steps=st.integers(1, 4),
)
cpus = st.builds(CpuAttention, max_slowdown=st.sampled_from([0.0, 10.0]), growth=growths)

_SETTINGS: Mapping[str, SearchStrategy[Policy]] = {
    "mirage": mirages,
    "mirage_cpu": st.builds(MirageCpu, mirage=mirages, cpu=cpus),
    "pie": st.builds(Pie, growth=growths),
    "cpu_attention": cpus,
    "on_demand": st.builds(OnDemand, growth=growths),
    "fixed_share": st.builds(
        FixedShare, share=st.sampled_from([0.0, 0.3, 1.0]), placement=st.sampled_from(["nested", "even", "contiguous"])
    ),
}

policies: SearchStrategy[Policy] = st.one_of(
    *(_SETTINGS.get(name, st.builds(policy)) for name, policy in POLICIES.items()), mirages
)


@st.composite
def sharings(draw: st.DrawFn, kind: str, models: tuple[TinyModel, ...], *, has_priorities: bool) -> Sharing:
    """A way of sharing by its name in the registry."""
    sharing = SHARINGS[kind]
    if sharing is Mps:
        return Mps(interference=draw(st.sampled_from([0.0, 0.1])))
    if sharing is Mig:
        return Mig(shares=(1 / len(models),) * len(models))
    assert sharing is TemporalSharing, f"{kind}: how is it drawn?"
    return TemporalSharing(
        quantum_s=draw(st.sampled_from([1, 150, 1000])) / NS_PER_S,
        order="priority" if has_priorities and draw(st.booleans()) else "round_robin",
        priorities=tuple(model.priority for model in models),
    )


@st.composite
def setups(draw: st.DrawFn, policy: SearchStrategy[Policy] = policies, scheduler: Scheduler = "vllm_v0") -> Setup:
    """Pools of a few blocks, so that preemption, lending, reversion and swapping are the rule."""
    is_v0, wanted = scheduler == "vllm_v0", draw(policy)
    if isinstance(wanted, Mirage) and not is_v0:
        wanted = replace(wanted, preemption="recompute")
    elif wanted.preemption == "swap" and not is_v0:
        wanted = Recompute()
    has_priorities = draw(st.booleans())
    models = tuple(
        TinyModel(
            n_layers=draw(st.sampled_from([4, 3, 5, 6, 2])),
            layer_pages=draw(st.integers(1, 4)),
            n_base_blocks=draw(st.integers(4, 9)),
            priority=draw(st.integers(0, 2)) if has_priorities else None,
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    chunked = draw(st.booleans())
    n_batched_tokens = [16, 4, MAX_CONTEXT] if chunked else [MAX_CONTEXT, 16 if is_v0 else MAX_CONTEXT]
    serving = Serving(
        scheduler=scheduler,
        block_tokens=draw(st.sampled_from([4, 2])),
        max_num_seqs=draw(st.sampled_from([4, 3, 1])),
        max_num_batched_tokens=draw(st.sampled_from(n_batched_tokens)),
        chunked_prefill=chunked,
        async_output=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.01, 0.3])),
        swap_space_bytes=2**14,
        share_idle_kv=is_v0 and draw(st.sampled_from([False, False, True])),
        kv_order=draw(st.sampled_from(["base_first", "first_fit"])) if is_v0 else "base_first",
        async_scheduling=draw(st.booleans()),
        long_prefill_tokens=draw(st.sampled_from([0, 3])),
        reserve_full_isl=draw(st.booleans()),
    )
    can_share_space = not (wanted.keeps_kv_on_host or serving.share_idle_kv or (not is_v0 and serving.async_scheduling))
    kind = draw(st.sampled_from([*SHARINGS] if can_share_space else ["temporal"]))
    tenancy = draw(sharings(kind, models, has_priorities=has_priorities))
    pace = Pace(
        fetch_ns=draw(st.sampled_from([2, 10, 60])),
        load_ns=draw(st.sampled_from([1, 60, 400])),
        remap_ns=draw(st.sampled_from([0, 7])),
    )
    does_memfd = is_v0 and kind == "temporal" and not (serving.share_idle_kv or wanted.keeps_kv_on_host)
    worlds: list[World] = [world for world in WORLDS if world != "memfd" or does_memfd]
    return Setup(
        policy=wanted,
        models=models,
        serving=serving,
        tenancy=tenancy,
        pace=pace,
        world=draw(st.sampled_from(worlds)),
        vmm_mode=draw(st.sampled_from(VmmMode)),
        slowdown_ppm=draw(st.sampled_from([0, 50_000])),
        leaps=draw(st.booleans()),
    )


def workload(rng: Random, n_requests: int, n_models: int) -> list[Arrival]:
    """Requests that may come at one instant, may be too long for a pool, and mostly stop before what they declare."""
    arrivals: list[Arrival] = []
    now_ns = 0
    for request_id in range(n_requests):
        now_ns += rng.choice([0, 0, 1, 60, 400, 3000])
        n_prompt = rng.choice([1, 3, 5, 7, 8, 12, 24])
        declared = rng.choice([1, 4, 9, 16, 24])
        arrivals.append(
            arrival(
                request_id,
                now_ns,
                n_prompt=n_prompt,
                n_output=rng.randint(1, declared),
                declared=declared,
                model=rng.randrange(n_models),
                prompt=_prompt(rng, n_prompt, request_id),
            )
        )
    return arrivals


def _prompt(rng: Random, n_tokens: int, request_id: int) -> tuple[tuple[str, int], ...] | None:
    """Nothing known, all shared, a shared beginning, or the answer to an earlier request quoted."""
    n_shared = max(1, n_tokens // 2)
    own = ((f"own{request_id}", n_tokens - n_shared),) if n_tokens > n_shared else ()
    quoted = f"out{rng.randint(0, request_id)}"
    return rng.choice([None, (("all", n_tokens),), (("all", n_shared), *own), ((quoted, n_shared), *own)])


@st.composite
def cases(
    draw: st.DrawFn, policy: SearchStrategy[Policy] = policies, scheduler: Scheduler = "vllm_v0"
) -> tuple[Setup, list[Arrival]]:
    """A setup and a workload for it. The seed keeps examples varied, the number of requests lets them shrink."""
    setup = draw(setups(policy, scheduler))
    rng = Random(draw(st.integers(0, 2**20)))
    arrivals = workload(rng, draw(st.integers(1, 12)), len(setup.models))
    return crowded(setup, arrivals) if draw(st.booleans()) else (setup, arrivals)


def crowded(setup: Setup, arrivals: list[Arrival]) -> tuple[Setup, list[Arrival]]:
    """All come at once, and models lend more while they are inactive than they may when their turn comes."""
    policy = setup.policy
    if isinstance(policy, Mirage):
        policy = replace(policy, inactive_bound="cap", active_bound="no_stall", lend_from="both")
    tenancy = setup.tenancy
    if isinstance(tenancy, TemporalSharing):
        tenancy = replace(tenancy, quantum_s=400 / NS_PER_S)
    pace = replace(setup.pace, fetch_ns=60)
    at_once = [
        replace(arrival, request=replace(arrival.request, arrival_ns=arrival.request.arrival_ns // 100))
        for arrival in arrivals
    ]
    return replace(setup, policy=policy, tenancy=tenancy, pace=pace), at_once
