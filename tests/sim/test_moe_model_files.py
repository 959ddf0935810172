from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from policies.moe import DeltaNet, MoeShape
from policies.types import GIB, KIB, MIB

FOLDER = Path(__file__).parents[2] / "conf" / "model" / "moe"
MODELS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PAGE_BYTES = 2 * MIB


def read(name: str) -> MoeShape:
    values = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(FOLDER / f"{name}.yaml")))
    if "delta_net" in values:
        values["delta_net"] = DeltaNet(**values["delta_net"])
    return MoeShape(**values)


@pytest.mark.parametrize("name", MODELS)
def test_layers_embedding_head_and_last_norm_add_up_to_the_published_total(name: str) -> None:
    shape = read(name)
    assert shape.other_params == 2 * shape.vocab * shape.hidden + shape.hidden


@pytest.mark.parametrize("name", MODELS)
def test_experts_have_a_gate_an_up_and_a_down_projection(name: str) -> None:
    shape = read(name)
    weights = 3 * shape.hidden * shape.expert_ffn
    biases = 3 * shape.hidden if name == "gpt_oss_120b" else 0
    assert shape.expert_params == weights + biases
    assert shape.gate_up_bytes == 2 * shape.down_bytes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek_v3", 37.6),
        ("gpt_oss_120b", 5.7),
        ("mixtral_8x7b", 12.9),
        ("qwen3_30b_a3b", 3.35),
        ("qwen3_next_80b_a3b", 3.87),
    ],
)
def test_weights_that_a_token_meets(name: str, billions: float) -> None:
    # Golden: hardware.md section 2; gpt-oss-120b is published as 5.1 without its embedding of 0.58.
    assert abs(read(name).active_params / 1e9 - billions) < 0.06


def test_a_layer_of_delta_nets_has_its_projections_and_convolution() -> None:
    delta = read("qwen3_next_80b_a3b").delta_net
    assert delta is not None
    keys, values = delta.n_key_heads * delta.head_dim, delta.n_value_heads * delta.head_dim
    projections = 2048 * (2 * keys + 2 * values + 2 * delta.n_value_heads) + values * 2048
    rest = (2 * keys + values) * delta.conv_width + 2 * delta.n_value_heads + delta.head_dim
    assert delta.layer_params == projections + rest


@pytest.mark.parametrize(
    ("n_ranks", "experts_gib", "state_mib", "block_tokens"), [(2, 72.0, 18.8, 544), (4, 36.0, 9.4, 272)]
)
def test_a_rank_of_the_papers_model(n_ranks: int, experts_gib: float, state_mib: float, block_tokens: int) -> None:
    # Golden: VAMP table I; hardware.md section 2 and [B1] for vLLM's blocks.
    shape = read("qwen3_next_80b_a3b")
    assert shape.experts(n_ranks, PAGE_BYTES).total_bytes == experts_gib * GIB
    assert shape.kv_bytes_per_token(n_ranks) == 12 * KIB
    assert shape.delta_net is not None
    assert abs(36 * shape.delta_net.state_bytes(n_ranks) / MIB - state_mib) < 0.06
    assert shape.block_tokens(n_ranks) == block_tokens
    assert shape.n_state_groups == 3


def test_what_a_rank_holds_besides_experts() -> None:
    # Golden: hardware.md section 2: 4.73 GB, about 2.2 GiB on each of two GPUs, 1.1 on each of four.
    shape = read("qwen3_next_80b_a3b")
    assert abs(shape.rest_bytes(1) / 1e9 - 4.73) < 0.005
    assert [round(shape.rest_bytes(n) / GIB, 1) for n in (2, 4)] == [2.2, 1.2]


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("deepseek_v3", 68.625),
        ("gpt_oss_120b", 72),
        ("mixtral_8x7b", 128),
        ("qwen3_30b_a3b", 96),
        ("qwen3_next_80b_a3b", 24),
    ],
)
def test_kv_cache_of_a_token_in_all_layers(name: str, kib: float) -> None:
    # Golden: hardware.md section 2.
    assert read(name).kv_bytes_per_token(1) == kib * KIB


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="does not divide among 11 ranks"):
        read("mixtral_8x7b").experts(11, PAGE_BYTES)


def test_every_number_with_an_explanation_has_it_in_its_line() -> None:
    for path in FOLDER.glob("*.yaml"):
        for line in path.read_text().splitlines():
            counted = line.strip().partition(":")[0].endswith(("_params", "_bytes"))
            assert not counted or "  # " in line, f"{path.name}: {line}"
