# pyright: basic
# (torch, safetensors and transformers leave parts of their interfaces untyped)
"""Layouts, random weights, and what is wrong with a folder of weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from executor.models.checkpoint import LLAMA_NAMES, open_checkpoint
from executor.models.config import read_spec
from executor.models.decoder import layer_layout
from executor.models.layout import LayerLayout, new_region
from executor.models.random_weights import fill_layer
from executor.models.spec import Family, spec_of
from policies.types import ModelShape
from tests.conftest import REPOSITORY
from tests.executor.models.tiny import CPU, tiny_shape

QWEN3 = REPOSITORY / "conf" / "model" / "qwen3_8b.yaml"
MODELS = sorted({*(REPOSITORY / "conf" / "model").glob("*.yaml")} - {QWEN3})
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_real_layer_packs_into_exactly_its_bytes(path: Path) -> None:
    shape = ModelShape(**yaml.safe_load(path.read_text()))
    spec = spec_of(shape, {2: torch.float16, 4: torch.float32}[shape.dtype_bytes])
    layout = layer_layout(spec)
    assert layout.n_bytes == spec.shape.layer_bytes
    assert all(field.offset_bytes % 256 == 0 for field in layout.fields.values())


def test_a_layer_with_more_than_the_executor_knows_is_another_size() -> None:
    shape = ModelShape(**yaml.safe_load(QWEN3.read_text()))
    query_and_key_norm = 2 * shape.head_dim * shape.dtype_bytes
    assert layer_layout(spec_of(shape, torch.bfloat16)).n_bytes == shape.layer_bytes - query_and_key_norm


def test_tensors_of_odd_sizes_are_kept_apart_and_aligned() -> None:
    layout = LayerLayout.packed({"a": (3,), "b": (5, 7), "c": (1,)}, torch.bfloat16)
    views = layout.views(new_region(layout.n_bytes, CPU))
    for number, tensor in enumerate(views.values()):
        tensor.fill_(number)
        assert tensor.data_ptr() % 16 == 0
    assert [tensor.unique().tolist() for tensor in views.values()] == [[0], [1], [2]]


def test_a_region_that_cannot_hold_a_layer_is_refused() -> None:
    layout = LayerLayout.packed({"a": (300,)}, torch.float32)
    with pytest.raises(ValueError, match="needs 1200 bytes, its region has 1199"):
        layout.views(new_region(1199, CPU))
    with pytest.raises(ValueError, match="not aligned to 256 bytes"):
        layout.views(new_region(1300, CPU)[16:])
    with pytest.raises(ValueError, match="must be contiguous bytes"):
        layout.views(torch.zeros(600))


def test_random_weights_follow_from_seed_and_layer_alone() -> None:
    layout = layer_layout(spec_of(tiny_shape(Family.OPT, torch.float16), torch.float16))
    drawn: dict[tuple[int, int], torch.Tensor] = {}
    for seed, layer in [(1, 0), (1, 1), (2, 0), (1, 0)]:
        region = new_region(layout.n_bytes, CPU)
        fill_layer(layout, region, seed, layer)
        assert torch.equal(drawn.setdefault((seed, layer), region), region)
    assert not torch.equal(drawn[1, 0], drawn[1, 1])
    assert not torch.equal(drawn[1, 0], drawn[2, 0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole Llama of one layer."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    sizes = {"q_proj": (32, 32), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (32, 32)}
    sizes |= {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
    layer = [name for names in LLAMA_NAMES.values() for name in names]
    tensors = {f"model.layers.0.{name}": torch.randn(sizes.get(name.split(".")[1], (32,))) for name in layer}
    tensors |= {"model.embed_tokens.weight": torch.randn(50, 32), "lm_head.weight": torch.randn(50, 32)}
    save_file({**tensors, "model.norm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    return tmp_path


def load(folder: Path) -> None:
    spec, checkpoint = read_spec(folder, torch.float32), open_checkpoint(folder)
    layout = layer_layout(spec)
    checkpoint.load_layer(spec, layout, 0, new_region(layout.n_bytes, CPU))
    checkpoint.load_outer(spec, CPU)


def test_a_whole_folder_loads(folder: Path) -> None:
    load(folder)


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def with_another_shape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(32, 31)
    save_file(tensors, folder / "model.safetensors")


def cut_short(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])


def with_an_index_to_nothing(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_a_config_of(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (without_a_tensor, r"no file holds model\.layers\.0\.mlp\.up_proj\.weight"),
        (with_another_shape, r"o_proj\.weight \(32, 31\), but config\.json asks for \(32, 32\) in all"),
        (cut_short, r"model\.safetensors cannot be read, fetch it again"),
        (with_an_index_to_nothing, r"model-00001-of-00002\.safetensors, which .* names, is missing"),
        (without_weights, r"holds no \*\.safetensors file"),
        (without_a_config, r"has no config\.json"),
        (with_a_config_of(model_type="gpt2"), r"model_type 'gpt2' is none of opt, llama, qwen3_moe and mixtral"),
        (with_a_config_of(vocab_size=None), r"lacks 'vocab_size'"),
        (with_a_config_of(hidden_act="gelu"), r"hidden_act='gelu' is not supported, only 'silu'"),
        (with_a_config_of(rope_scaling={"type": "yarn"}), r"rope type 'yarn' is neither default nor llama3"),
        (with_a_config_of(intermediate_size=64), r"gate_proj\.weight \(48, 32\), .* asks for \(128, 32\) in all"),
        (with_a_config_of(num_attention_heads=4, num_key_value_heads=3), r"4 heads do not divide among 3 KV heads"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said_in_one_line(
    folder: Path, damage: Callable[[Path], None], fault: str
) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=fault) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
