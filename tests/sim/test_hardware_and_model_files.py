from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from bench.fit_roofline import read_machine, read_shape
from policies.types import LinkProfile, ModelShape

CONF = Path(__file__).parents[2] / "conf"
HARDWARE = sorted((CONF / "hardware").glob("*.yaml"))
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))

# Parameters as published (config.json of each model on Hugging Face, safetensors index).
TOTAL_PARAMETERS = {
    "opt_6_7b": 6_658_473_984,
    "opt_13b": 12_853_473_280,
    "opt_30b": 29_974_540_288,
    "llama_2_7b": 6_738_415_616,
    "llama_2_13b": 13_015_864_320,
    "llama_3_8b": 8_030_261_248,
    "llama_2_70b": 68_976_648_192,
    "llama_3_70b": 70_553_706_496,
    "qwen3_8b": 8_190_735_360,
}


def layer_parameters(shape: ModelShape) -> int:
    hidden, ffn = shape.hidden, shape.ffn
    if not shape.gated_mlp:  # OPT: biases everywhere, LayerNorm with scale and shift
        return 4 * (hidden**2 + hidden) + (2 * hidden * ffn + ffn + hidden) + 2 * 2 * hidden
    query, key_value = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    query_and_key_norms = 2 * shape.head_dim if shape.name.startswith("Qwen3") else 0
    return 2 * hidden * query + 2 * hidden * key_value + 3 * hidden * ffn + 2 * hidden + query_and_key_norms


def other_parameters(shape: ModelShape) -> int:
    if not shape.gated_mlp:  # the head is the embedding
        return shape.vocab * shape.hidden + (shape.max_context_tokens + 2) * shape.hidden + 2 * shape.hidden
    return 2 * shape.vocab * shape.hidden + shape.hidden


@pytest.mark.parametrize("name", MODELS)
def test_the_bytes_of_a_model_follow_from_its_architecture_and_match_the_published_total(name: str) -> None:
    shape = read_shape(name)
    assert shape.layer_bytes == shape.dtype_bytes * layer_parameters(shape)
    assert shape.other_bytes == shape.dtype_bytes * other_parameters(shape)
    if not name.startswith("tiny_"):  # made here, for the executor without a GPU
        assert shape.total_bytes == shape.dtype_bytes * TOTAL_PARAMETERS[name]
    assert shape.n_heads * shape.head_dim == shape.hidden


@pytest.mark.parametrize(
    ("name", "kv_kib"),
    [
        ("opt_6_7b", 512),
        ("opt_13b", 800),
        ("opt_30b", 1344),
        ("llama_2_7b", 512),
        ("llama_2_13b", 800),
        ("llama_3_8b", 128),
        ("llama_2_70b", 320),
        ("llama_3_70b", 320),
        ("qwen3_8b", 144),
    ],
)
def test_kv_cache_of_a_token(name: str, kv_kib: int) -> None:
    assert read_shape(name).kv_bytes_per_token == kv_kib * 1024


BESIDE_PROMPTS = {"link.prefill_compute_slowdown", "link.prefill_copy_slowdown"}
OPTIONAL = BESIDE_PROMPTS | {"unified", "link.copy_slowdown", "cpu.attention_bytes_per_s", "cpu.layer_ns"}
"""Keys that a machine has where it is known."""


def test_every_hardware_file_has_the_same_keys_and_whole_bytes() -> None:
    files = [flat(OmegaConf.to_container(OmegaConf.load(path))) for path in HARDWARE]
    assert files
    for path, values in zip(HARDWARE, files, strict=True):
        assert values.keys() - OPTIONAL == files[0].keys() - OPTIONAL
        assert values["name"] == path.stem
        assert all(type(value) is int for key, value in values.items() if key.endswith(("bytes", "bytes_per_s", "_ns")))
        read_machine(path)


def test_every_number_of_a_hardware_file_names_its_source() -> None:
    for path in HARDWARE:
        for line in path.read_text().splitlines():
            is_number = line.strip() and not line.startswith(("#", "name:")) and not line.endswith(":")
            assert not is_number or "  # " in line, f"{path.name}: {line}"


@pytest.mark.parametrize(
    ("name", "fetch_ms"),
    [("opt_13b", 1.474), ("llama_2_13b", 1.486), ("llama_3_8b", 1.022), ("opt_30b", 2.888), ("opt_6_7b", 0.943)],
)
def test_a_layer_crosses_the_link_of_the_paper_in(name: str, fetch_ms: float) -> None:
    link: Any = OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / "gh200_paper.yaml"))
    bandwidths = {key: value for key, value in link["link"].items() if key.endswith("bytes_per_s")}
    assert LinkProfile(**bandwidths).fetch_ns(read_shape(name).layer_bytes) / 1e6 == pytest.approx(fetch_ms, abs=5e-4)


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return pairs
