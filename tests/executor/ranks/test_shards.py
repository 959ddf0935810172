"""The parts of all ranks are the whole, and each is as large as the books say."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from bench.fit_roofline import read_shape
from executor.models.decoder import layer_layout
from executor.models.layout import new_region
from executor.models.random_weights import fill_layer
from executor.models.spec import DecoderSpec, spec_of
from executor.ranks.shards import Split, splits_of, take_part
from policies.ranks import of_rank

MODELS = ("tiny_opt", "tiny_llama")
CPU = torch.device("cpu")


def spec(model: str) -> DecoderSpec:
    return spec_of(replace(read_shape(model), dtype_bytes=2), torch.bfloat16)


def parts_of(whole: DecoderSpec, n_ranks: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """A layer as a single rank has it, and as each of several does."""
    layout, part = layer_layout(whole), layer_layout(replace(whole, shape=of_rank(whole.shape, n_ranks)))
    source = new_region(layout.n_bytes, CPU)
    fill_layer(layout, source, 3, 1)
    parts: list[dict[str, Tensor]] = []
    for rank in range(n_ranks):
        region = new_region(part.n_bytes, CPU)
        take_part(whole, (layout, part), source, region, rank, n_ranks)
        parts.append(part.views(region))
    return layout.views(source), parts


def put_together(split: Split, parts: list[Tensor]) -> Tensor:
    """The whole again: group by group, each of the parts of all ranks in order."""
    n_ranks = len(parts)
    starts = [0, *accumulate(size // n_ranks for size in split.groups)]
    groups = [
        torch.cat([part.narrow(split.axis, start, end - start) for part in parts], split.axis)
        for start, end in pairwise(starts)
    ]
    return torch.cat(groups, split.axis)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_parts_of_all_ranks_are_the_whole_layer(model: str, n_ranks: int) -> None:
    whole = spec(model)
    tensors, parts = parts_of(whole, n_ranks)
    splits = splits_of(whole)
    for name, tensor in tensors.items():
        if name in splits:
            assert torch.equal(put_together(splits[name], [part[name] for part in parts]), tensor), name
        else:
            assert all(torch.equal(part[name], tensor) for part in parts), name


@pytest.mark.parametrize("model", MODELS)
def test_a_rank_has_its_heads_of_q_k_and_v(model: str) -> None:
    """Head 1 of two ranks' KV heads is the first of rank 1: its rows lie where that rank's own heads begin."""
    whole = spec(model)
    shape, part = whole.shape, of_rank(whole.shape, 2)
    tensors, parts = parts_of(whole, 2)
    first = shape.n_heads * shape.head_dim + part.n_kv_heads * shape.head_dim  # K of the first head of rank 1
    mine = part.n_heads * shape.head_dim
    assert torch.equal(parts[1]["qkv_weight"][mine], tensors["qkv_weight"][first])


@pytest.mark.parametrize("model", ["opt_6_7b", "opt_13b", "opt_30b", "llama_2_7b", "llama_2_13b", "llama_3_8b"])
@pytest.mark.parametrize("n_ranks", [1, 2, 4, 8])
def test_a_rank_is_as_large_as_its_packed_layer(model: str, n_ranks: int) -> None:
    shape = of_rank(read_shape(model), n_ranks)
    assert layer_layout(spec_of(shape, torch.bfloat16)).n_bytes == shape.layer_bytes
    assert shape.block_bytes(16) * n_ranks == read_shape(model).block_bytes(16)
    assert shape.other_bytes == read_shape(model).other_bytes


def test_what_does_not_divide_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="model Llama-3-8b: n_kv_heads=8 does not divide among 16 ranks"):
        of_rank(read_shape("llama_3_8b"), 16)
