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
from executor.models.moe import Routed
from executor.models.spec import DecoderSpec, ExpertSpec, Family
from policies.types import ModelShape

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
    routed = LoopKernels().route(normed, normed @ router.T, SPEC)
    return there(routed, device)


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


@pytest.mark.parametrize(
    ("n_rows", "n_experts", "n_active", "normalises"),
    [(1, 16, 3, True), (40, 6, 2, False), (520, 6, 2, True), (3, 8, 8, True)],  # 1,040 are more than sorted at once
)
def test_routing_agrees_with_the_reference(n_rows: int, n_experts: int, n_active: int, normalises: bool) -> None:
    torch.manual_seed(6)
    spec = ExpertSpec(n_experts=n_experts, n_active=n_active, ffn=48, normalises=normalises)
    logits, normed = torch.randn(n_rows, n_experts), torch.randn(n_rows, WIDTH)
    ours = TritonExperts().route(normed.to(DEVICE), logits.to(DEVICE), spec)
    theirs = LoopKernels().route(normed, logits, spec)
    assert torch.equal(ours.order.cpu(), theirs.order)
    assert torch.equal(ours.starts.cpu(), theirs.starts)
    torch.testing.assert_close(ours.weights.cpu(), theirs.weights, rtol=1e-5, atol=1e-6)


def test_of_equally_likely_experts_the_first_are_chosen() -> None:
    spec = ExpertSpec(n_experts=6, n_active=2, ffn=48)
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 1.0]] * 3, device=DEVICE)
    routed = TritonExperts().route(torch.zeros(3, WIDTH, device=DEVICE), logits, spec)
    assert routed.starts.tolist() == [0, 0, 3, 6, 6, 6, 6]
    assert routed.order.tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("head_dim", [16, 48])
def test_norms_of_heads_agree_with_the_reference(head_dim: int) -> None:
    torch.manual_seed(8)
    spec = heads_spec(head_dim)
    ours, norms = torch.randn(5, 8 * head_dim), torch.randn(2, head_dim)
    theirs, on_device = ours.clone(), ours.to(DEVICE, copy=True)
    LoopKernels().norm_heads(theirs, norms[0], norms[1], spec)
    TritonExperts().norm_heads(on_device, norms[0].to(DEVICE), norms[1].to(DEVICE), spec)
    torch.testing.assert_close(on_device.cpu(), theirs, rtol=1e-5, atol=1e-6)
    assert torch.equal(on_device.cpu()[:, 6 * head_dim :], ours[:, 6 * head_dim :])


def heads_spec(head_dim: int) -> DecoderSpec:
    """Four heads and two KV heads."""
    layer = ModelShape(
        name="heads", n_layers=1, hidden=WIDTH, n_heads=4, n_kv_heads=2, head_dim=head_dim, ffn=48, vocab=8,
        gated_mlp=True, layer_bytes=4, total_bytes=4, max_context_tokens=8, dtype_bytes=4,
    )  # fmt: skip
    return DecoderSpec(
        shape=layer, family=Family.MOE, dtype=torch.float32, tied_head=False, experts=SPEC, norms_heads=True
    )


def test_one_row_with_one_expert_is_no_special_case() -> None:
    spec = ExpertSpec(n_experts=6, n_active=1, ffn=48)
    routed = TritonExperts().route(torch.zeros(1, WIDTH, device=DEVICE), torch.eye(6, device=DEVICE)[3:4], spec)
    assert routed.starts.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert routed.order.tolist() == [0]
