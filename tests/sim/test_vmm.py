from __future__ import annotations

import pytest

from sim.vmm import VmmCost, VmmMode

# Measured on an H200: see conf/hardware/h200_pcie.yaml.
H200 = VmmCost(range_ns=71_900, page_ns=62_400)
PAGES_OF_AN_OPT_13B_LAYER = 301  # 629,278,720 bytes in pages of 2 MiB


def test_aliased_homes_change_hands_without_a_driver_call() -> None:
    assert H200.remap_ns(VmmMode.ALIAS, 5, PAGES_OF_AN_OPT_13B_LAYER) == 0


def test_a_handle_for_each_layer_costs_about_75_microseconds_a_home() -> None:
    assert H200.remap_ns(VmmMode.RANGE, 2, PAGES_OF_AN_OPT_13B_LAYER) / 2 == pytest.approx(75_000, rel=0.05)


def test_a_handle_for_each_page_costs_several_times_the_transfer_of_the_layer() -> None:
    # 10-22 ms against 1.47 ms over a GH200's link: kvcached and vAttention, 33-74 us a page.
    assert 10_000_000 <= H200.remap_ns(VmmMode.PAGE, 1, PAGES_OF_AN_OPT_13B_LAYER) <= 22_000_000


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="range_ns=-1"):
        VmmCost(range_ns=-1, page_ns=0)
