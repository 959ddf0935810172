# pyright: basic
# (torch leaves parts of its interface untyped)
"""Triton's grouped GEMMs against the reference; ``test_triton_grouped.py`` runs this file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from executor.experts.loop import LoopKernels
from executor.experts.packs import ExpertTable, PackLayout, table_of
from executor.experts.triton_grouped import FEW_ROWS, MANY_ROWS, Tiling, TritonExperts
from executor.models.layout import new_region
from executor.models.moe import Routed, route
from executor.models.spec import ExpertSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
SPEC = ExpertSpec(n_experts=6, n_active=2, ffn=48)
WIDTH = 64
PACK = PackLayout(n_experts=2, hidden=WIDTH, ffn=SPEC.ffn, dtype=torch.float32, page_bytes=4096)
TILINGS = [FEW_ROWS, MANY_ROWS, Tiling(rows=16, columns=16, depth=32, n_warps=1, n_stages=1)]


def packs() -> list[Tensor]:
    regions = [new_region(PACK.n_bytes, CPU).fill_(0xFF) for _ in range(3)]
    for region in regions:
        PACK.gate_up(region).normal_(0, 0.2)
        PACK.down(region).normal_(0, 0.2)
    return regions


def routed(n_rows: int, device: torch.device) -> Routed:
    """Rows of which none is routed to the third expert."""
    router = torch.randn(SPEC.n_experts, WIDTH)
    normed = torch.randn(n_rows, WIDTH)
    router[2] = 0
    normed[:, 0], router[:, 0], router[2, 0] = 1, 0, -100
    return route(normed.to(device), router.to(device), SPEC, torch.arange(SPEC.n_experts + 1, device=device))


def there(each: Routed, device: torch.device) -> Routed:
    return replace(
        each, normed=each.normed.to(device), weights=each.weights.to(device), order=each.order.to(device),
        starts=each.starts.to(device),
    )  # fmt: skip


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("n_rows", [1, 5, 70])
def test_experts_agree_with_the_reference(n_rows: int, tiling: Tiling) -> None:
    torch.manual_seed(3)
    mine, work = packs(), routed(n_rows, CPU)
    assert work.starts[2] == work.starts[3]
    theirs = torch.randn(n_rows, WIDTH)
    ours = theirs.to(DEVICE, copy=True)
    LoopKernels().run(theirs, work, table_of(PACK, mine), SPEC)
    on_device = [new_region(PACK.n_bytes, DEVICE).copy_(region) for region in mine]
    TritonExperts(tiling).run(ours, there(work, DEVICE), table_of(PACK, on_device), SPEC)
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_where_experts_lie_changes_no_bit(tiling: Tiling) -> None:
    torch.manual_seed(4)
    mine = [new_region(PACK.n_bytes, DEVICE).copy_(region) for region in packs()]
    work, hidden = routed(20, DEVICE), torch.randn(20, WIDTH, device=DEVICE)
    elsewhere = [mine[0], *(new_region(PACK.n_bytes + 512, DEVICE)[512:].copy_(region) for region in mine[1:])]
    first, second = hidden.clone(), hidden.clone()
    TritonExperts(tiling).run(first, work, table_of(PACK, mine), SPEC)
    TritonExperts(tiling).run(second, work, table_of(PACK, elsewhere), SPEC)
    assert torch.equal(first, second)
    assert not torch.equal(first, hidden)


def test_a_table_that_says_another_place_gives_other_bits() -> None:
    torch.manual_seed(5)
    mine = [new_region(PACK.n_bytes, DEVICE).copy_(region) for region in packs()]
    work, first = routed(20, DEVICE), torch.zeros(20, WIDTH, device=DEVICE)
    second, table = first.clone(), table_of(PACK, mine)
    TritonExperts().run(first, work, table, SPEC)
    swapped = ExpertTable(table.base, table.offsets.roll(1, dims=1))
    TritonExperts().run(second, work, swapped, SPEC)
    assert not torch.equal(first, second)


def test_sizes_that_tiles_do_not_take_are_refused() -> None:
    spec = ExpertSpec(n_experts=6, n_active=2, ffn=40)
    with pytest.raises(ValueError, match="size 40 is no multiple of 16"):
        TritonExperts().run(torch.zeros(4, WIDTH, device=DEVICE), routed(4, DEVICE), table_of(PACK, packs()), spec)
