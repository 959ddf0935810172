from __future__ import annotations

import pytest

from policies.errors import HbmOverdrawn
from policies.memory.experts import ExpertLayout, ExpertResidency, Offload, OffloadCap
from policies.memory.ledger import Holder, Ledger, Partition, Use
from policies.memory.residency import Target

LAYOUT = ExpertLayout(n_layers=4, n_experts=16, n_active=2, gate_up_bytes=2, down_bytes=1, page_bytes=2)
EXPERTS = ExpertResidency(LAYOUT, OffloadCap(fraction=0.5))
STAY = (Target(),)


def nothing_in_use(lender: int, home: int) -> int:
    del lender, home
    return 0


def open_ledger() -> Ledger:
    """Experts of 4 x 24 pages, 7 pages of KV cache and two buffers of 12 pages."""
    part = Partition(
        name="moe",
        n_layers=4,
        home_pages=LAYOUT.total_bytes // 4 // LAYOUT.page_bytes,
        other_pages=3,
        activation_pages=2,
        kv_pages=7,
        staging_pages=EXPERTS.buffer_bytes // LAYOUT.page_bytes,
    )
    return Ledger(part.n_pages + 5, [part], [EXPERTS])


def test_pages_of_offloaded_experts_are_entered_as_such_and_add_up() -> None:
    ledger = open_ledger()
    before = sum(ledger.holdings().values())
    plan = ledger.plan(STAY, nothing_in_use, [2])
    assert [type(op) for op in plan.ops] == [Offload, Offload]
    assert ledger.increments == (0,)
    ledger.commit(plan)
    holdings = ledger.holdings()
    assert ledger.increments == (2,)
    assert holdings[Holder(0, Use.OFFLOADED)] == 2 * 4 * 3  # increments of four groups of three pages
    assert holdings[Holder(0, Use.RESIDENT)] == 4 * 24 - 24
    assert holdings[Holder(0, Use.STAGING)] == 24
    assert sum(holdings.values()) == before


def test_an_increment_whose_blocks_are_in_use_does_not_come_back() -> None:
    ledger = open_ledger()
    ledger.commit(ledger.plan(STAY, nothing_in_use, [2]))
    with pytest.raises(HbmOverdrawn, match="increment 1 of model 0 holds 3 blocks in use"):
        ledger.plan(STAY, lambda _, increment: 3 if increment == 1 else 0, [0])
    ledger.commit(ledger.plan(STAY, nothing_in_use, [0]))
    assert not ledger.anything_lent


def test_more_than_the_cap_is_refused_and_nothing_is_touched() -> None:
    ledger = open_ledger()
    with pytest.raises(HbmOverdrawn, match="at most 3"):
        ledger.plan(STAY, nothing_in_use, [4])
    assert ledger.increments == (0,)


def test_without_a_word_about_experts_they_stay_where_they_are() -> None:
    ledger = open_ledger()
    ledger.commit(ledger.plan(STAY, nothing_in_use, [1]))
    plan = ledger.plan(STAY, nothing_in_use)
    assert plan.ops == ()
    ledger.commit(plan)
    assert ledger.increments == (1,)
