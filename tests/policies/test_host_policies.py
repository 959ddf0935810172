"""The systems that MIRAGE is compared with: what each asks for, and when it stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.cpu_attention import CpuAttention
from policies.decision import Decision, Reason
from policies.fixed_share import FixedShare
from policies.host_growth import HostGrowth
from policies.memory.residency import HostKv, HostUse, Residency, Target
from policies.mirage import Mirage
from policies.mirage_cpu import MirageCpu
from policies.on_demand import OnDemand
from policies.pie import Pie
from policies.policy import Policy
from policies.types import HardwareProfile, LinkProfile, ModelShape
from policies.view import Ask, MemoryView, ModelView, RangeView

N_LAYERS = 40
BLOCK_BYTES = 1_000_000
GROWTH = HostGrowth(unit_blocks=10)
HARDWARE = HardwareProfile(
    name="test",
    hbm_bytes=10**11,
    hbm_bytes_per_s=4 * 10**12,
    page_bytes=2**21,
    link=LinkProfile(h2d_bytes_per_s=400 * 10**9, d2h_bytes_per_s=300 * 10**9, joint_bytes_per_s=360 * 10**9),
    cpu_attention_bytes_per_s=400 * 10**9,
    cpu_layer_ns=10_000,
)


def model(on_host: HostKv | None = None, *, decode_ns: int = 10_000_000, n_free: int = 0) -> ModelView:
    """A model of which every layer is at home: a layer takes as long to fetch as 6 take to compute."""
    shape = ModelShape(
        name="m", n_layers=N_LAYERS, hidden=1, n_heads=1, n_kv_heads=1, head_dim=1, ffn=1, vocab=1, gated_mlp=False,
        layer_bytes=600_000_000, total_bytes=25 * 10**9, max_context_tokens=2048,
    )  # fmt: skip
    return ModelView(
        shape=shape,
        residency=replace(Residency.all_resident(N_LAYERS), on_host=on_host),
        priority=None,
        is_active=True,
        last_active_step=0,
        n_waiting=1,
        n_running=8,
        n_base_blocks=100,
        n_blocks=100 + (0 if on_host is None else on_host.n_units * on_host.unit_blocks),
        n_free_blocks=n_free,
        blocks_per_home=(60, 60),
        fetch_ns=1_500_000,
        decode_ns=decode_ns,
        rest_ns=2_000_000,
        prefill_ns=20_000_000,
        weights_ns=7_000_000,
        block_bytes=BLOCK_BYTES,
    )


def view(ask: Ask, *models: ModelView, n_short: int = 1, ranges: tuple[RangeView, ...] = ()) -> MemoryView:
    return MemoryView(
        step=100, ask=ask, asker=0, n_short_blocks=n_short, hardware=HARDWARE, models=models, ranges=ranges
    )


def holding(n_units: int, use: HostUse = HostUse.EXCHANGE) -> HostKv:
    return HostKv(n_units, GROWTH.unit_blocks, GROWTH.unit_blocks * BLOCK_BYTES, use)


def unit(index: int, n_referenced: int) -> RangeView:
    return RangeView(0, N_LAYERS + index, 0, GROWTH.unit_blocks, n_referenced, is_on_host=True)


def n_units(decision: Decision) -> int:
    on_host = decision.targets[0].on_host
    return 0 if on_host is None else on_host.n_units


def most_units(policy: Policy, use: HostUse) -> int:
    """Units that it comes to hold while blocks stay short."""
    held = 0
    while True:
        decision = policy.decide(view(Ask.RUNNING_SHORT, model(holding(held, use) if held else None)))
        if n_units(decision) == held:
            return held
        held = n_units(decision)


def test_pie_grows_until_a_step_would_be_slowed() -> None:
    # 10 ms of layers at 180 GB/s each way: 1800 MB, so 180 units of 10 MB.
    assert most_units(Pie(growth=GROWTH), HostUse.EXCHANGE) == 180


def test_a_pie_that_copies_block_by_block_pays_for_each_copy() -> None:
    # A unit: 10 MB at 180 GB/s are 55.56 us, 10 blocks x 40 layers x (keys, values) of 1 us are 800 us; 11 in 10 ms.
    policy = Pie(growth=GROWTH, copy_ns=1000)
    held = None
    while (more := policy.decide(view(Ask.RUNNING_SHORT, model(held))).targets[0].on_host) != held:
        held = more
    assert held is not None
    assert (held.n_units, held.copies_ns) == (11, 8_800_000)


def test_the_cpu_takes_as_much_as_it_attends_to_while_the_gpu_computes() -> None:
    # 10 ms of layers, 40 x 10 us on the way: 9.6 ms at 400 GB/s are 3840 MB.
    assert most_units(CpuAttention(growth=GROWTH), HostUse.ATTEND) == 384
    assert most_units(CpuAttention(growth=GROWTH, max_slowdown=1.0), HostUse.ATTEND) == 784


def test_streaming_on_demand_stops_only_at_the_hosts_memory() -> None:
    growth = replace(GROWTH, max_host_bytes=5 * 10**9)
    assert most_units(OnDemand(growth=growth), HostUse.STREAM) == 500


def test_a_shortage_is_covered_at_once_or_not_at_all() -> None:
    decision = Pie(growth=GROWTH).decide(view(Ask.WAITING_SHORT, model(), n_short=25))
    assert (n_units(decision), decision.reason) == (3, Reason.HOLD_ON_HOST)
    too_much = Pie(growth=GROWTH).decide(view(Ask.WAITING_SHORT, model(), n_short=2500))
    assert (n_units(too_much), too_much.reason) == (0, Reason.WOULD_STALL)


def test_pie_takes_nothing_from_a_model_that_is_inactive() -> None:
    # MIRAGE 7.4: under C1 it "cannot reclaim from inactive models".
    idle = replace(model(), is_active=False, n_running=0, n_waiting=0)
    decision = Pie(growth=GROWTH).decide(view(Ask.RUNNING_SHORT, model(), idle))
    assert n_units(decision) == 1
    assert decision.targets[1] == Target()
    assert Mirage().decide(view(Ask.RUNNING_SHORT, model(), idle)).targets[1].loans


def test_a_unit_comes_back_when_its_blocks_have_room_in_hbm() -> None:
    policy = Pie(growth=replace(GROWTH, hysteresis_steps=1))
    held, ranges = holding(2), (unit(0, 10), unit(1, 4))
    roomy = view(Ask.EASE, model(held, n_free=6 + 60), ranges=ranges)
    first = policy.decide(roomy)
    assert first.reason is Reason.WAITING_TO_REVERT
    second = policy.decide(replace(roomy, step=101, policy_memory=first.policy_memory))
    assert (n_units(second), second.reason, second.migrate) == (1, Reason.LEAVE_HOST, True)
    crowded = view(Ask.EASE, model(held, n_free=6 + 3), ranges=ranges)
    assert policy.decide(crowded).reason is Reason.IN_USE


def test_a_unit_that_slows_the_step_comes_back_without_waiting() -> None:
    policy = Pie(growth=replace(GROWTH, hysteresis_steps=100))
    slowed = model(holding(180), decode_ns=9_000_000, n_free=16)
    ranges = tuple(unit(index, 0 if index == 179 else 10) for index in range(180))
    assert n_units(policy.decide(view(Ask.EASE, slowed, ranges=ranges))) == 179


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_fixed_share_is_lent_before_anything_is_served_and_stays(share: float) -> None:
    policy = FixedShare(share=share)
    (target,) = policy.decide(view(Ask.START, model())).targets
    assert len(target.loans) == round(share * N_LAYERS)
    assert {loan.borrower for loan in target.loans} == {0}
    for ask in (Ask.RUNNING_SHORT, Ask.WAITING_SHORT, Ask.EASE, Ask.IDLE, Ask.ACTIVATE):
        assert policy.decide(view(ask, model())).targets == (Target(),)  # as it is in this view


def test_mirage_lends_first_then_the_cpu_helps_and_goes_first() -> None:
    policy = MirageCpu(mirage=Mirage(reversion=True), cpu=CpuAttention(growth=GROWTH))
    lent = policy.decide(view(Ask.RUNNING_SHORT, model()))
    assert lent.reason is Reason.LEND_ACTIVE
    at_cap = MirageCpu(mirage=Mirage(max_remapped_fraction=0.01), cpu=CpuAttention(growth=GROWTH))
    helped = at_cap.decide(view(Ask.RUNNING_SHORT, model()))
    assert (helped.reason, n_units(helped)) == (Reason.HOLD_ON_HOST, 1)
    slow = model(holding(1, HostUse.ATTEND), decode_ns=400_000, n_free=10)
    eased = at_cap.decide(view(Ask.EASE, slow, ranges=(unit(0, 0),)))
    assert (eased.reason, n_units(eased)) == (Reason.LEAVE_HOST, 0)


def test_settings_out_of_range_are_refused() -> None:
    for make in (
        lambda: HostGrowth(unit_blocks=0),
        lambda: HostGrowth(spare_margin=1.0),
        lambda: CpuAttention(max_slowdown=-0.1),
        lambda: FixedShare(share=1.1),
    ):
        with pytest.raises(ValueError, match=r"must|outside"):
            make()
