from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.remap.how_many import one_slot_step_ns, step_ns
from policies.remap.which_layers import evenly_spaced
from sim.link import Link
from sim.pipeline import Pipeline
from tests.sim.pipelines import BYTE_A_NS, cycling_pipeline, steady_step_ns

MEASURED = Path(__file__).parents[1] / "data" / "h200_pipeline.json"


@given(st.integers(2, 12), st.integers(2, 8), st.integers(1, 1000), st.integers(1, 20_000))
def test_one_slot_has_no_stall_iff_equation_4_holds(n_cycling: int, gap: int, layer_ns: int, fetch_ns: int) -> None:
    # MIRAGE eq. 4, m = alpha + 1 divides n: T_T <= (n/m - 1) T_c.
    n_layers = n_cycling * gap
    pipeline = cycling_pipeline(n_layers, evenly_spaced(n_layers, n_cycling), 1, fetch_ns)
    step = steady_step_ns(pipeline, layer_ns)
    assert (step == n_layers * layer_ns) == (fetch_ns <= (gap - 1) * layer_ns)
    assert step == n_cycling * max(gap * layer_ns, fetch_ns + layer_ns)


@given(st.integers(3, 8), st.integers(2, 6), st.integers(1, 30), st.integers(1, 300))
def test_two_slots_have_no_stall_iff_equation_5_holds(n_cycling: int, gap: int, layer_ns: int, fetch_ns: int) -> None:
    # MIRAGE eq. 5, m = alpha + 2 divides n: T_T <= (n/m) T_c. Beyond it the link never rests: m T_T a step.
    n_layers = n_cycling * gap
    pipeline = cycling_pipeline(n_layers, evenly_spaced(n_layers, n_cycling), 2, fetch_ns)
    # Full slots are up to two transfers ahead of a link that falls behind by as little as m a step.
    step = steady_step_ns(pipeline, layer_ns, n_steps=1 + 2 * gap * layer_ns // n_cycling)
    assert (step == n_layers * layer_ns) == (fetch_ns <= gap * layer_ns)
    assert step == max(n_layers * layer_ns, n_cycling * fetch_ns)


@given(st.data(), st.integers(2, 48), st.integers(1, 500), st.integers(1, 5000), st.integers(0, 2000))
def test_with_one_slot_a_step_is_the_sum_over_gaps_that_policies_expect(
    data: st.DataObject, n_layers: int, layer_ns: int, fetch_ns: int, rest_ns: int
) -> None:
    cycling = sorted(data.draw(st.sets(st.integers(0, n_layers - 1), min_size=2)))
    pipeline = cycling_pipeline(n_layers, cycling, 1, fetch_ns)
    expected = one_slot_step_ns(n_layers, tuple(cycling), layer_ns, fetch_ns, rest_ns)
    assert steady_step_ns(pipeline, layer_ns, rest_ns) == expected


@given(st.integers(3, 48), st.data(), st.integers(1, 500), st.integers(1, 5000), st.integers(0, 2000))
def test_with_two_slots_a_step_is_as_long_as_policies_expect(
    n_layers: int, data: st.DataObject, layer_ns: int, fetch_ns: int, rest_ns: int
) -> None:
    cycling = evenly_spaced(n_layers, data.draw(st.integers(3, n_layers)))
    expected = step_ns(n_layers, cycling, 2, layer_ns, fetch_ns, rest_ns)
    step = steady_step_ns(cycling_pipeline(n_layers, cycling, 2, fetch_ns), layer_ns, rest_ns)
    assert float(step) == pytest.approx(expected, rel=0.02)


def test_the_second_slot_pays_from_nine_lent_layers_on() -> None:
    # Golden: MIRAGE section 5.4 gives alpha >= 9 for n = 40; at r = T_T / T_c = 4000 / 427 it follows.
    n_layers, layer_ns, fetch_ns = 40, 427, 4000

    def step(n_remapped: int, n_slots: int) -> float:
        cycling = evenly_spaced(n_layers, n_remapped + n_slots)
        return float(steady_step_ns(cycling_pipeline(n_layers, cycling, n_slots, fetch_ns), layer_ns))

    pays = [n_remapped for n_remapped in range(3, 20) if step(n_remapped, 2) < step(n_remapped, 1)]
    assert pays == list(range(9, 20))


def test_slots_by_position_cost_at_most_4_7_percent_of_a_step_of_32_layers() -> None:
    # DESIGN section 7: what a GPU graph that fixes a layer's slot gives away, worst at m = 11, r = 2.75.
    cycling = evenly_spaced(32, 11)
    alternating = steady_step_ns(cycling_pipeline(32, cycling, 2, 2750), 1000)
    static = steady_step_ns(cycling_pipeline(32, cycling, 2, 2750, static_slots=True), 1000)
    assert float(static / alternating) == pytest.approx(1.047, abs=0.0005)


def test_a_step_without_cycling_layers_is_host_layers_and_head() -> None:
    pipeline = Pipeline([100] * 5, Link(BYTE_A_NS))
    assert pipeline.step(1000, 10, before_ns=7, after_ns=3) == (1060, 0)
    assert pipeline.step(2000, [1, 2, 3, 4, 5], before_ns=7, after_ns=3) == (2025, 0)


def test_layers_that_each_have_a_slot_are_fetched_once() -> None:
    link = Link(BYTE_A_NS)
    pipeline = Pipeline([100] * 6, link)
    pipeline.set_cycle([1, 4], [2, 3], at_ns=0)
    assert pipeline.step(0, 10, 0, 0) == (200 + 20, 90 + 70)
    assert pipeline.step(220, 10, 0, 0) == (280, 0)
    assert link.h2d(1, at_ns=220).start_ns == 220


def test_between_steps_the_slots_fill_with_the_first_layers_of_the_next() -> None:
    pipeline = cycling_pipeline(4, (0, 2), 1, fetch_ns=100)
    end_ns, _ = pipeline.step(0, 10, 0, 0)
    _, stall_ns = pipeline.step(end_ns + 1000, 10, 0, 0)
    assert stall_ns == 100 - 10  # layer 0 was there; layer 2 had one layer's time of its fetch


def test_a_slot_that_holds_the_first_layer_of_the_new_cycle_is_not_filled_again() -> None:
    link = Link(BYTE_A_NS)
    pipeline = Pipeline([100] * 8, link)
    pipeline.set_cycle([0, 4], [0], at_ns=0)
    end_ns, _ = pipeline.step(0, 1000, 0, 0)
    pipeline.set_cycle([0, 2, 4], [0], at_ns=end_ns)
    assert link.h2d(1, end_ns).start_ns == end_ns
    pipeline.set_cycle([2, 4], [0], at_ns=end_ns)
    assert link.h2d(1, end_ns).start_ns == end_ns + 1 + 100


def test_a_home_that_was_lent_holds_nothing_when_it_becomes_a_slot() -> None:
    pipeline = Pipeline([100] * 8, Link(BYTE_A_NS))
    pipeline.set_cycle([0, 4], [0], at_ns=0)  # home 4 is lent
    pipeline.set_cycle([0, 4, 6], [0, 4], at_ns=0)  # home 6 is lent instead
    _, stall_ns = pipeline.step(0, 10, 0, 0)
    assert stall_ns == (100 - 4 * 10) + (200 - 120)  # layer 4 arrives at 100, layer 6 behind it at 200


def test_a_layer_that_has_moved_to_another_home_has_left_nothing_of_use_in_its_own() -> None:
    pipeline = Pipeline([100] * 8, Link(BYTE_A_NS))
    pipeline.set_cycle([0, 4], [0], at_ns=0)  # home 4 is lent
    pipeline.set_cycle([0, 4, 6], [0], at_ns=0)
    pipeline.load(4, 6, at_ns=0)  # layer 4 comes back, but into the home of layer 6
    pipeline.set_cycle([0, 6], [0], at_ns=1000)
    pipeline.set_cycle([0, 4, 6], [0, 4], at_ns=1000)  # layer 4 leaves again; its own home is a slot now
    assert pipeline.quiet_ns(4) == 1100


def test_a_load_queues_behind_fetches_and_keeps_its_home_busy_until_it_has_landed() -> None:
    pipeline = Pipeline([100] * 8, Link(BYTE_A_NS))
    pipeline.set_cycle([1, 4, 6], [2], at_ns=0)
    assert pipeline.quiet_ns(2) == 100
    load = pipeline.load(4, 4, at_ns=0)
    assert (load.start_ns, load.end_ns, pipeline.quiet_ns(4), pipeline.quiet_ns(7)) == (100, 200, 200, 0)
    pipeline.set_cycle([1, 6], [2], at_ns=200)
    assert pipeline.step(200, 10, 0, 0) == (200 + 6 * 10 + 60 + 2 * 10, 60)


def test_models_share_the_link_in_the_order_of_their_requests() -> None:
    link = Link(BYTE_A_NS)
    first, second = Pipeline([100] * 4, link), Pipeline([50] * 4, link)
    first.set_cycle([0, 2], [1], at_ns=0)
    second.set_cycle([0, 2], [1], at_ns=0)
    assert second.quiet_ns(1) == 150
    assert first.step(0, 10, 0, 0)[1] == 100 + (150 + 100 - 120)  # its second fetch waits for the other model's


def test_a_copy_beside_computation_slows_the_step() -> None:
    pipeline = Pipeline([10_000] * 4, Link(BYTE_A_NS, slowdown_ppm=100_000))
    pipeline.load(3, 3, at_ns=0)
    assert pipeline.step(0, 1000, before_ns=0, after_ns=0) == (4400, 0)


def test_layers_without_a_slot_cannot_cycle() -> None:
    with pytest.raises(ValueError, match="cycle without a slot"):
        Pipeline([1] * 4, Link(BYTE_A_NS)).set_cycle([1], [], at_ns=0)


def test_the_recurrence_predicts_the_steps_measured_on_an_h200() -> None:
    rows: list[dict[str, Any]] = json.loads(MEASURED.read_text())["pipeline"]
    assert len(rows) == 36
    off: list[float] = []
    for row in rows:
        cycling = evenly_spaced(40, row["alpha"] + row["beta"])
        pipeline = cycling_pipeline(40, cycling, row["beta"], round(row["tt_ms"] * 1e6))
        expected_ms = float(steady_step_ns(pipeline, round(row["base_ms"] * 1e6 / 40))) / 1e6
        error = abs(row["meas_ms"] / expected_ms - 1)
        if expected_ms > row["base_ms"] + 0.001:
            assert error <= 0.025, f"the link binds: {row}"
        else:
            off.append(error)
    assert sorted(off)[-1] <= 0.08  # one outlier: alpha 2, two slots, 2048 tokens
    assert sorted(off)[-2] <= 0.05
