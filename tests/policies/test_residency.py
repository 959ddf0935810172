"""Residency, ops and ledger: homes are a partition, pages are conserved, refusals touch nothing."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.errors import HbmOverdrawn
from policies.memory.ledger import Holder, Ledger, Partition, Use, partition
from policies.memory.ops import Cycle, Lend, Load, Op, Withdraw, transition
from policies.memory.residency import Loan, Residency, Target
from policies.remap.grow import with_one_less, with_one_more
from policies.remap.which_layers import Placement
from policies.types import GIB, MIB, HardwareProfile, LinkProfile, ModelShape

PLACEMENTS: list[Placement] = ["nested", "even", "first_and_last", "contiguous"]


def nothing_referenced(_lender: int, _home: int) -> int:
    return 0


def three_referenced(_lender: int, _home: int) -> int:
    return 3


@dataclass
class Homes:
    """A device that does literally what the ops say, home by home, and refuses nonsense."""

    n_layers: int
    content: list[str] = field(init=False)
    cycling: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.content = [f"layer {layer}" for layer in range(self.n_layers)]

    def carry_out(self, op: Op) -> None:
        match op:
            case Withdraw(_, home, borrower):
                assert self.content[home] == f"kv of {borrower}"
                self.content[home] = "empty"
            case Cycle(_, cycling, slots):
                self._cycle({*cycling}, slots)
            case Load(_, layer, home):
                assert self.content[home] == "empty"
                assert layer in self.cycling
                self.content[home] = f"loading {layer}"
            case Lend(_, home, borrower):
                assert self.content[home] == "empty"
                self.content[home] = f"kv of {borrower}"
            case _:
                raise AssertionError(op)

    def land(self, layer: int) -> None:
        self.content[self.content.index(f"loading {layer}")] = f"layer {layer}"

    def _cycle(self, cycling: set[int], slots: tuple[int, ...]) -> None:
        for home, what in enumerate(self.content):
            if what in {f"layer {layer}" for layer in cycling} or (what == "slot" and home not in slots):
                self.content[home] = "empty"
        at_rest = sorted(self.cycling - cycling - {layer for layer in self.cycling if self._is_home(layer)})
        for layer in at_rest:  # a layer leaves the cycle without a load only to rest in a slot
            home = layer if self.content[layer] == "empty" else self.content.index("empty")
            self.content[home] = f"layer {layer}"
        for slot in slots:
            assert self.content[slot] in ("empty", "slot")
            self.content[slot] = "slot"
        self.cycling = cycling

    def _is_home(self, layer: int) -> bool:
        return f"layer {layer}" in self.content


def agree(device: Homes, residency: Residency) -> None:
    assert device.cycling == {*residency.cycling}
    for layer, home in enumerate(residency.homes):
        if home is not None:
            assert f"layer {layer}" in device.content
    assert [home for home, what in enumerate(device.content) if what == "slot"] == sorted(residency.slots)
    assert {home for home, what in enumerate(device.content) if what.startswith("kv")} == {
        loan.home for loan in residency.loans
    }
    assert "empty" not in device.content


def some_targets(data: st.DataObject, residency: Residency, placement: Placement) -> Target | None:
    n_slots = data.draw(st.sampled_from([1, 2]))
    if residency.loans and data.draw(st.booleans()):
        home = data.draw(st.sampled_from([loan.home for loan in residency.loans]))
        return with_one_less(residency, home, n_slots, placement)
    return with_one_more(residency, 1, n_slots, placement)


@given(st.data(), st.integers(4, 24), st.sampled_from(PLACEMENTS))
def test_ops_do_on_a_literal_device_what_the_residency_says(
    data: st.DataObject, n_layers: int, placement: Placement
) -> None:
    ledger = Ledger(10_000, [small_partition(n_layers), small_partition(4)])
    device = Homes(n_layers)
    for _ in range(data.draw(st.integers(1, 25))):
        now = ledger.residencies[0]
        if now.loading and data.draw(st.booleans()):
            layer, _home = data.draw(st.sampled_from(now.loading))
            device.land(layer)
            for op in ledger.land(0, layer):
                device.carry_out(op)
        else:
            target = some_targets(data, now, placement)
            if target is not None:
                plan = ledger.plan([target, Target()], nothing_referenced)
                for op in plan.ops:
                    device.carry_out(op)
                ledger.commit(plan)
                assert transition(0, ledger.residencies[0], target) == ((), ledger.residencies[0])
        agree(device, ledger.residencies[0])
        assert sum(ledger.holdings().values()) == 10_000
        assert min(ledger.holdings().values()) >= 0


def small_partition(n_layers: int) -> Partition:
    return Partition(name="m", n_layers=n_layers, home_pages=7, other_pages=3, activation_pages=1, kv_pages=50)


def test_a_range_in_use_is_refused_and_nothing_is_touched() -> None:
    ledger = Ledger(1000, [small_partition(8), small_partition(8)])
    target = with_one_more(ledger.residencies[0], 1, 1, "even")
    assert target is not None
    ledger.commit(ledger.plan([target, Target()], nothing_referenced))
    before = ledger.residencies, ledger.holdings()
    with pytest.raises(HbmOverdrawn, match="still holds 3 blocks in use"):
        ledger.plan([Target(), Target()], three_referenced)
    assert (ledger.residencies, ledger.holdings()) == before


def test_lending_a_layer_moves_exactly_its_pages() -> None:
    ledger = Ledger(1000, [small_partition(8), small_partition(8)])
    before = ledger.holdings()
    target = with_one_more(ledger.residencies[0], 1, 1, "nested")
    assert target is not None
    ledger.commit(ledger.plan([target, Target()], nothing_referenced))
    after = ledger.holdings()
    moved = {holder: after[holder] - before[holder] for holder in after if after[holder] != before[holder]}
    assert moved == {Holder(0, Use.RESIDENT): -14, Holder(0, Use.SLOTS): 7, Holder(0, Use.LENT): 7}


def test_a_home_that_is_being_loaded_cannot_be_lent() -> None:
    residency = Residency(homes=(None, 1, None, 3), slots=(0,), loading=((2, 2),))
    with pytest.raises(HbmOverdrawn, match="being loaded"):
        transition(0, residency, Target(cycling=(0, 3), n_slots=1, loans=(Loan(2, 1),)))


def test_weights_larger_than_the_share_are_refused_with_the_mend() -> None:
    link = LinkProfile(h2d_bytes_per_s=1, d2h_bytes_per_s=1, joint_bytes_per_s=1)
    gpu = HardwareProfile(name="small", hbm_bytes=4 * GIB, hbm_bytes_per_s=1, page_bytes=2 * MIB, link=link)
    shape = ModelShape(
        name="big", n_layers=10, hidden=1, n_heads=1, n_kv_heads=1, head_dim=1, ffn=1, vocab=1, gated_mlp=False,
        layer_bytes=GIB, total_bytes=10 * GIB, max_context_tokens=2048,
    )  # fmt: skip
    with pytest.raises(ValueError, match="give it a larger share or a larger GPU"):
        partition(shape, gpu, share=0.5, activation_bytes=0)
