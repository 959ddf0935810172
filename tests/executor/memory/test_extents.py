"""Offsets in bytes are the block ids of ``policies/memory/layout.py``, and no two mappings meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.memory.extents import Extents, measure
from policies.memory.layout import lay_out
from policies.memory.ledger import partition
from policies.types import GB, MIB, HardwareProfile, LinkProfile, ModelShape
from tests.executor.memory.scenes import PAGES, open_books

LINK = LinkProfile(h2d_bytes_per_s=GB, d2h_bytes_per_s=GB, joint_bytes_per_s=GB)


def machine(page_bytes: int, hbm_bytes: int) -> HardwareProfile:
    return HardwareProfile(name="any", hbm_bytes=hbm_bytes, hbm_bytes_per_s=GB, page_bytes=page_bytes, link=LINK)


def shape(n_layers: int, layer_bytes: int, head_dim: int, n_kv_heads: int = 1) -> ModelShape:
    return ModelShape(
        name="any", n_layers=n_layers, hidden=1, n_heads=n_kv_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, ffn=1,
        vocab=1, gated_mlp=False, layer_bytes=layer_bytes, total_bytes=n_layers * layer_bytes + 1,
        max_context_tokens=64,
    )  # fmt: skip


def extents_of(models: tuple[ModelShape, ...], hardware: HardwareProfile, block_tokens: int) -> tuple[Extents, ...]:
    parts = [partition(each, hardware, share=1 / len(models), activation_bytes=1) for each in models]
    layouts = [
        lay_out(
            each, models, hardware, block_tokens=block_tokens,
            n_base_blocks=part.kv_pages * hardware.page_bytes // each.block_bytes(block_tokens),
        )
        for each, part in zip(models, parts, strict=True)
    ]  # fmt: skip
    return measure(models, parts, layouts, page_bytes=hardware.page_bytes, block_tokens=block_tokens)


shapes = st.builds(shape, st.integers(1, 5), st.integers(1, 400), st.integers(1, 9))


@given(st.lists(shapes, min_size=1, max_size=3), st.sampled_from([16, 32, 64]), st.integers(1, 4), st.integers(20, 60))
def test_mappings_of_a_kv_range_are_whole_pages_that_do_not_meet(
    models: list[ModelShape], page_bytes: int, block_tokens: int, n_kv_pages: int
) -> None:
    needed = max(each.total_bytes for each in models) + (n_kv_pages + 8 * 5) * page_bytes
    sizes_of_all = extents_of(tuple(models), machine(page_bytes, len(models) * needed), block_tokens)
    for each in sizes_of_all:
        spans = [(0, each.base_bytes)]
        for lender, sizes in enumerate(sizes_of_all):
            spans += [(each.lent_offset(lender, home), sizes.home_bytes) for home in range(sizes.n_homes)]
        end = 0
        for offset, n_bytes in spans:
            assert offset % page_bytes == n_bytes % page_bytes == 0
            assert offset >= end
            end = offset + n_bytes
        assert end <= each.kv_bytes


@given(st.lists(shapes, min_size=1, max_size=3), st.sampled_from([16, 32, 64]), st.integers(1, 4))
def test_every_block_lies_within_one_mapping_and_a_mapping_within_its_pages(
    models: list[ModelShape], page_bytes: int, block_tokens: int
) -> None:
    needed = max(each.total_bytes for each in models) + 60 * page_bytes
    sizes = extents_of(tuple(models), machine(page_bytes, len(models) * needed), block_tokens)
    for each in sizes:
        assert each.layout.n_base_blocks * each.block_bytes <= each.base_bytes <= each.part.kv_pages * page_bytes
        for lender in range(len(models)):
            first, n_blocks = each.layout.range_of(lender, 0)
            assert each.lent_offset(lender, 0) == first * each.block_bytes
            assert n_blocks * each.block_bytes <= sizes[lender].home_bytes < (n_blocks + 1) * each.block_bytes


def test_a_home_of_opt_13b_as_kv_of_another_opt_13b() -> None:
    # Arithmetic: 16 tokens x 2 x 40 heads x 128 x 2 bytes x 40 layers = 12.5 MiB a block; lcm(2, 12.5) = 50 MiB.
    # 629,278,720 bytes a layer (conf/model/opt_13b.yaml) = 300.06 pages of 2 MiB, so 301 = 602 MiB;
    # 48 whole blocks = 600 MiB, but the next home starts where the whole one has room: 13 x 50 = 650 MiB on.
    opt = shape(40, 629_278_720, head_dim=128, n_kv_heads=40)
    (each,) = extents_of((opt,), machine(2 * MIB, 64 * 2**30), block_tokens=16)
    assert each.block_bytes == 12.5 * MIB
    assert each.home_bytes == 602 * MIB
    assert each.layout.blocks_per_home == (48,)
    first, second = each.lent_offset(0, 0), each.lent_offset(0, 1)
    assert second - first == 650 * MIB
    assert first % (50 * MIB) == 0


def test_base_blocks_beyond_the_pages_of_the_partition_are_refused() -> None:
    wide, _ = open_books(PAGES["memfd"])[1]
    with pytest.raises(ValueError, match="share_idle_kv"):
        replace(wide, layout=replace(wide.layout, n_base_blocks=wide.layout.n_base_blocks + 1))


def test_a_layer_that_packs_into_more_than_its_home_is_refused() -> None:
    wide, _ = open_books(PAGES["memfd"])[1]
    assert replace(wide, region_bytes=3 * 4096).home_bytes == 3 * 4096
    with pytest.raises(ValueError, match=r"12289 bytes exceeds its home of 12288;"):
        replace(wide, region_bytes=3 * 4096 + 1)


def test_homes_base_and_what_torch_may_use_are_all_that_the_ledger_accounts() -> None:
    for each in open_books(PAGES["memfd"])[1]:
        unused = each.part.kv_pages * each.page_bytes - each.base_bytes
        held = each.n_homes * each.home_bytes + each.base_bytes + each.torch_bytes
        assert held + unused == each.part.n_pages * each.page_bytes
        assert 0 <= unused < each.block_bytes + each.page_bytes


def test_layers_that_do_not_exist_cannot_be_lendable() -> None:
    wide, _ = open_books(PAGES["memfd"])[1]
    with pytest.raises(ValueError, match=r"lendable layers \[5\] are outside 0\.\.4"):
        replace(wide, lendable=frozenset({4, 5}))
