"""MIRAGE as a policy: figure 7 as a script, caps, bounds, reversion, purity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision import Reason
from policies.mirage import Mirage
from policies.registry import POLICIES
from policies.view import Ask
from tests.policies.script import Script, with_ranges_in_use

# The script's machine: T_T = 100 MiB / 100 GB/s = 1.05 ms, T_c = 5 ms unless a test says otherwise.


def test_figure_seven_lends_the_lowest_priority_first_then_the_next_then_the_active_model_and_reverts() -> None:
    # MIRAGE figure 7: A is active, B and C are not, C has the lowest priority; caps of half the layers.
    # 20 layers of 5 ms and 1.05 ms transfers: A may lend as many of its own layers as its cap allows.
    a, b, c = 0, 1, 2
    script = Script(Mirage(max_remapped_fraction=0.5, hysteresis_steps=1), n_layers=[20, 8, 8], priorities=[3, 2, 1])
    story: list[int] = []
    for _ in range(60):
        before = script.lent()
        script.ask(Ask.RUNNING_SHORT)
        script.step += 1
        story += [model for model in (a, b, c) if script.lent()[model] > before[model]]
    assert story == [c] * 4 + [b] * 4 + [a] * 10
    assert script.ask(Ask.RUNNING_SHORT).reason is Reason.AT_CAP

    returned: list[int] = []
    while any(script.lent()):
        before = script.lent()
        script.ask(Ask.EASE)
        script.step += 1
        returned += [model for model in (a, b, c) if script.lent()[model] < before[model]]
    assert returned == [a] * 10 + [b] * 4 + [c] * 4  # the active model first, then in reverse order of lending
    assert all(not residency.cycling for residency in script.ledger.residencies)


def test_only_one_layer_is_lent_in_one_step() -> None:
    script = Script(Mirage(), n_layers=[20, 20], priorities=[None, None])
    script.ask(Ask.RUNNING_SHORT)
    assert script.ask(Ask.RUNNING_SHORT).reason is Reason.ONE_A_STEP
    assert sum(script.lent()) == 1


@pytest.mark.parametrize(("order", "first"), [("mru", 2), ("lru", 1)])
def test_among_inactive_models_without_priorities_the_order_of_use_decides(order: str, first: int) -> None:
    policy = Mirage(victim_order="mru" if order == "mru" else "lru")
    script = Script(policy, n_layers=[20, 20, 20], priorities=[None] * 3, last_active=[30, 10, 20])
    script.ask(Ask.RUNNING_SHORT)
    assert [model for model, n in enumerate(script.lent()) if n] == [first]


def test_the_active_model_lends_no_layer_that_would_make_a_step_wait() -> None:
    # T_T = 1.05 ms against 20 layers of 0.1 ms: even one cycling pair needs 2 x (1.05 + 0.1) ms > 2 ms.
    script = Script(Mirage(lend_from="active"), n_layers=[20], priorities=[None], layer_ns=100_000)
    assert script.ask(Ask.RUNNING_SHORT).reason is Reason.WOULD_STALL
    assert script.lent() == [0]


def test_the_papers_bound_counts_alpha_transfers_where_ours_counts_what_cycles() -> None:
    # 20 layers of 0.1 ms = 2 ms: the paper allows alpha = 1 (1.05 ms), ours does not (see above).
    script = Script(
        Mirage(lend_from="active", active_bound="paper"), n_layers=[20], priorities=[None], layer_ns=100_000
    )
    for _ in range(5):
        script.ask(Ask.RUNNING_SHORT)
        script.step += 1
    assert script.lent() == [1]


def test_a_range_in_use_does_not_go_back_and_an_idle_one_waits_for_the_hysteresis() -> None:
    script = Script(Mirage(hysteresis_steps=5, lend_from="inactive"), n_layers=[20, 20], priorities=[None, None])
    script.ask(Ask.RUNNING_SHORT)
    script.step += 1
    script.referenced = {(1, script.ledger.residencies[1].loans[0].home)}
    assert script.ask(Ask.EASE).reason is Reason.IN_USE
    script.referenced = set()
    reasons: list[Reason] = []
    for _ in range(6):
        reasons.append(script.ask(Ask.EASE).reason)
        script.step += 1
    assert reasons == [Reason.WAITING_TO_REVERT] * 5 + [Reason.REVERT]
    assert script.lent() == [0, 0]


def test_a_borrower_keeps_its_margin_before_a_range_goes_back() -> None:
    script = Script(Mirage(hysteresis_steps=1), n_layers=[20, 20], priorities=[None, None])
    script.ask(Ask.RUNNING_SHORT)
    script.n_free = {0: 20}  # 20 free of 110, the range holds 10: 10 < 10 % of 110 would be left
    assert script.ask(Ask.EASE).reason is Reason.IN_USE


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01])
def test_a_cap_outside_its_range_is_refused_with_the_mend(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"max_remapped_fraction=.* is outside \(0, 1\]"):
        Mirage(max_remapped_fraction=fraction)


settings = st.builds(
    Mirage,
    max_remapped_fraction=st.floats(0.05, 1),
    layers_per_step=st.integers(1, 3),
    lend_from=st.sampled_from(["both", "inactive", "active"]),
    victim_order=st.sampled_from(["mru", "lru"]),
    active_bound=st.sampled_from(["no_stall", "paper", "cap"]),
    inactive_bound=st.sampled_from(["prefill", "cap"]),
    slots=st.sampled_from(["auto", "one", "two", "threshold"]),
    placement=st.sampled_from(["nested", "even", "first_and_last", "contiguous"]),
    hysteresis_steps=st.integers(1, 4),
)


@given(settings, st.lists(st.integers(3, 24), min_size=1, max_size=3), st.data())
def test_every_sequence_of_questions_keeps_caps_and_pages_and_answers_purely(
    policy: Mirage, n_layers: list[int], data: st.DataObject
) -> None:
    script = Script(policy, n_layers=n_layers, priorities=[None] * len(n_layers), layer_ns=500_000)
    total = sum(script.ledger.holdings().values())
    for _ in range(data.draw(st.integers(1, 30))):
        script.step += data.draw(st.integers(0, 2))
        script.active = data.draw(st.integers(0, len(n_layers) - 1))
        ask = data.draw(st.sampled_from(list(Ask)))
        view = script.view(ask)
        assert policy.decide(view) == policy.decide(view)
        script.ask(ask)
        assert sum(script.ledger.holdings().values()) == total
        for n, n_lent in zip(n_layers, script.lent(), strict=True):
            assert n_lent <= policy.max_remapped_fraction * n


@given(settings, st.integers(3, 24), st.data())
def test_no_decision_takes_back_a_range_in_use(policy: Mirage, n_layers: int, data: st.DataObject) -> None:
    script = Script(policy, n_layers=[n_layers, n_layers], priorities=[None, None])
    for _ in range(data.draw(st.integers(1, 10))):
        script.ask(Ask.RUNNING_SHORT)
        script.step += 1
    view = with_ranges_in_use(script.view(data.draw(st.sampled_from([Ask.EASE, Ask.IDLE]))))
    decision = policy.decide(view)
    for target, residency in zip(decision.targets, script.ledger.residencies, strict=True):
        assert {*target.loans} >= {*residency.loans}


def test_every_policy_of_the_registry_can_be_made_without_settings() -> None:
    for policy in POLICIES.values():
        assert policy().preemption in ("recompute", "swap")
