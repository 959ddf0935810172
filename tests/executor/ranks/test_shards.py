"""The parts of all ranks are the whole, and each is as large as the books say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor
from torch.nn import functional

from bench.fit_roofline import read_shape
from executor.models.checkpoint import open_checkpoint
from executor.models.decoder import layer_layout
from executor.models.layout import new_region
from executor.models.random_weights import fill_expert, fill_layer
from executor.models.spec import DecoderSpec, moe_spec_of, spec_of
from executor.ranks.commands import Vote
from executor.ranks.load import load_expert_part
from executor.ranks.shards import Split, moe_of_rank, splits_of, take_part
from policies.ranks import of_rank
from tests.sim.test_moe_model_files import read

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


MOE = moe_spec_of(read("tiny_moe"), torch.float32)


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_ranks_with_experts_have_their_heads_and_share_what_is_too_little_to_divide(n_ranks: int) -> None:
    whole = MOE
    layout, part = layer_layout(whole), layer_layout(moe_of_rank(whole, n_ranks))
    source, parts = new_region(layout.n_bytes, CPU), list[dict[str, Tensor]]()
    fill_layer(layout, source, 3, 1)
    for rank in range(n_ranks):
        region = new_region(part.n_bytes, CPU)
        take_part(whole, (layout, part), source, region, rank, n_ranks)
        parts.append(part.views(region))
    tensors, shape = layout.views(source), whole.shape
    n_heads, n_kv_heads = shape.n_heads // n_ranks, max(1, shape.n_kv_heads // n_ranks)
    width, kv_width = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    q, k, v = torch.split(tensors["qkv_weight"], [width, kv_width, kv_width])
    for rank, mine in enumerate(parts):
        queries = range(rank * n_heads, (rank + 1) * n_heads)
        keys = sorted(
            {head * shape.n_kv_heads // shape.n_heads for head in queries}
        )  # those that its queries attend to
        assert len(keys) == n_kv_heads
        heads = [heads_of(q, queries, shape.head_dim), *(heads_of(each, keys, shape.head_dim) for each in (k, v))]
        assert torch.equal(mine["qkv_weight"], torch.cat(heads))
        assert torch.equal(mine["out_weight"], heads_of(tensors["out_weight"].t(), queries, shape.head_dim).t())
        for name in mine.keys() - {"qkv_weight", "out_weight"}:
            assert torch.equal(mine[name], tensors[name]), name


def heads_of(rows: Tensor, heads: Iterable[int], head_dim: int) -> Tensor:
    return torch.cat([rows[head * head_dim : (head + 1) * head_dim] for head in heads])


@dataclass(frozen=True)
class Numbered:
    """A rank that neither sums nor votes."""

    rank: int
    n_ranks: int

    def sum(self, tensor: Tensor) -> None:
        raise AssertionError(f"nobody sums {tensor}")

    def cast(self, vote: Vote) -> Vote:
        raise AssertionError(f"nobody casts {vote}")


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
@pytest.mark.parametrize("is_stored", [False, True])
def test_what_the_parts_of_an_expert_say_adds_up_to_what_it_says(n_ranks: int, is_stored: bool, tmp_path: Path) -> None:
    assert MOE.experts is not None
    hidden, ffn = MOE.shape.hidden, MOE.experts.ffn
    gate_up, down = torch.empty(2 * ffn, hidden), torch.empty(hidden, ffn)
    fill_expert(MOE, gate_up, down, 3, 1, 5)
    names = [f"model.layers.1.mlp.experts.5.{name}_proj.weight" for name in ("gate", "up", "down")]
    save_file(
        dict(zip(names, (*(each.clone() for each in gate_up.chunk(2)), down), strict=True)), tmp_path / "m.safetensors"
    )
    checkpoint, rows = open_checkpoint(tmp_path) if is_stored else None, torch.randn(7, hidden)
    said = torch.zeros(7, hidden)
    for rank in range(n_ranks):
        part = torch.empty(2 * ffn // n_ranks, hidden), torch.empty(hidden, ffn // n_ranks)
        load_expert_part(MOE, checkpoint, 3, 1, 5, part, Numbered(rank, n_ranks))
        said += answer(rows, *part)
    assert torch.allclose(said, answer(rows, gate_up, down), atol=1e-6)


def answer(rows: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (rows @ gate_up.t()).chunk(2, dim=1)
    return (functional.silu(gate) * up) @ down.t()


@pytest.mark.parametrize("model", ["qwen3_30b_a3b", "mixtral_8x7b", "tiny_moe"])
@pytest.mark.parametrize("n_ranks", [1, 2, 4, 8])
def test_a_rank_with_experts_is_as_large_as_its_packed_layer_and_the_books_say(model: str, n_ranks: int) -> None:
    shape = read(model)
    if shape.n_heads % n_ranks:
        pytest.skip("heads do not divide")
    whole = moe_spec_of(shape, {2: torch.bfloat16, 4: torch.float32}[shape.dtype_bytes])
    part = moe_of_rank(whole, n_ranks)
    assert layer_layout(part).n_bytes == part.shape.layer_bytes
    assert part.shape.kv_bytes_per_token == shape.kv_bytes_per_token(n_ranks)
    assert part.shape.other_bytes == whole.shape.other_bytes


@pytest.mark.parametrize(("n_ranks", "told"), [(3, "n_heads=32"), (64, "n_heads=32"), (0, "n_ranks=0 must be")])
def test_experts_that_do_not_divide_are_refused_by_name(n_ranks: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        moe_of_rank(moe_spec_of(read("qwen3_30b_a3b"), torch.bfloat16), n_ranks)


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
