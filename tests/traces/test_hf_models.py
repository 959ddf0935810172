"""Sizes derived from a ``config.json`` against Hugging Face's own models, which take no memory on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.models import catalogue, named
from policies.moe import MoeShape
from policies.types import GIB, ModelShape
from traces.hf.architectures import ARCHITECTURES
from traces.hf.model import model_of
from traces.workload.context import context_tokens

transformers: Any = pytest.importorskip("transformers", reason="needs the extra executor-tests")
torch: Any = pytest.importorskip("torch", reason="needs the extra executor-tests")

TRUE: dict[str, tuple[str, dict[str, Any]]] = {
    "opt_6_7b": ("opt", {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384}),
    "opt_13b": ("opt", {"hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "ffn_dim": 20480}),
    "opt_30b": ("opt", {"hidden_size": 7168, "num_hidden_layers": 48, "num_attention_heads": 56, "ffn_dim": 28672}),
    "llama_2_7b": ("llama", {"max_position_embeddings": 4096}),
    "llama_3_8b": (
        "llama",
        {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192},
    ),
    "qwen3_8b": (
        "qwen3",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "intermediate_size": 12288,
            "max_position_embeddings": 40960,
        },
    ),
    "mixtral_8x7b": ("mixtral", {"max_position_embeddings": 32768}),
    "qwen3_30b_a3b": (
        "qwen3_moe",
        {"num_hidden_layers": 48, "head_dim": 128, "max_position_embeddings": 40960},
    ),
    "gpt_oss_120b": ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}),
    "deepseek_v3": (
        "deepseek_v3",
        {"max_position_embeddings": 163840, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}},
    ),
    "qwen3_next_80b_a3b": ("qwen3_next", {"max_position_embeddings": 262144}),
}
"""Configs of models of the catalogue: what differs from the defaults of their class (published config.json of each)."""


def saved(folder: Path, model_type: str, values: dict[str, Any], **more: Any) -> Any:
    """A ``config.json`` as transformers writes it, and what it was written from."""
    own = {key: value for key, value in values.items() if key != "quantization_config"}
    config = transformers.CONFIG_MAPPING[model_type](**own, **more)
    config.save_pretrained(folder)
    if "quantization_config" in values:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return config


def n_params(config: Any) -> int:
    """Parameters of the model, and the corrections that DeepSeek's router keeps as a buffer."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    corrections = [buffer.numel() for name, buffer in model.named_buffers() if "e_score_correction" in name]
    return sum(parameter.numel() for parameter in model.parameters()) + sum(corrections)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_parameters_are_those_of_the_model_that_the_defaults_of_its_class_make(model_type: str, tmp_path: Path) -> None:
    config = saved(tmp_path, model_type, {})
    assert model_of(tmp_path).parts.n_params == n_params(config)


@pytest.mark.parametrize("name", TRUE)
def test_a_model_of_the_catalogue_follows_from_its_config(name: str, tmp_path: Path) -> None:
    model_type, values = TRUE[name]
    config = saved(tmp_path, model_type, values)
    found, known = model_of(tmp_path), named(name)
    assert found.parts.n_params == n_params(config)
    if known.moe is None:
        assert without_name(found.shape) == without_name(known.shape)
    else:
        assert found.moe is not None
        assert without_name(found.moe) == without_name(known.moe)


def without_name(shape: ModelShape | MoeShape) -> dict[str, Any]:
    # the catalogue counts the head's width of a dense layer that no layer of these has
    return {field: getattr(shape, field) for field in shape.__slots__ if field != "name"}


SMALL = {
    "num_hidden_layers": st.integers(1, 5),
    "vocab_size": st.sampled_from([32, 77]),
    "tie_word_embeddings": st.booleans(),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parameters_are_those_of_small_models_of_every_kind(data: st.DataObject, tmp_path: Path) -> None:
    model_type = data.draw(st.sampled_from(sorted(ARCHITECTURES)))
    values: dict[str, Any] = {key: data.draw(strategy) for key, strategy in SMALL.items()}
    kv_heads, per_head = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 3]))
    heads = kv_heads * per_head
    values |= {"hidden_size": 8 * heads, "num_attention_heads": heads, "max_position_embeddings": 64}
    if model_type == "opt":
        values |= {"ffn_dim": 40, "word_embed_proj_dim": data.draw(st.sampled_from([8 * heads, 4]))}
        values |= {"do_layer_norm_before": data.draw(st.booleans()), "enable_bias": data.draw(st.booleans())}
        values["tie_word_embeddings"] = True
    else:
        values |= {"intermediate_size": 24, "num_key_value_heads": kv_heads}
    if model_type in ("llama", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v3", "qwen3_next"):
        values["attention_bias"] = data.draw(st.booleans())
    if model_type == "llama":
        values["mlp_bias"] = data.draw(st.booleans())
    if model_type in ("qwen3", "qwen3_moe", "mistral", "gpt_oss", "qwen3_next"):
        values["head_dim"] = data.draw(st.sampled_from([8, 16]))
    values |= experts_of(model_type, data)
    config = saved(tmp_path, model_type, values)
    assert model_of(tmp_path).parts.n_params == n_params(config)


def experts_of(model_type: str, data: st.DataObject) -> dict[str, Any]:
    n_experts = data.draw(st.sampled_from([4, 6]))
    match model_type:
        case "mixtral" | "gpt_oss":
            return {"num_local_experts": n_experts, "num_experts_per_tok": 2}
        case "qwen3_moe":
            return {"num_experts": n_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
        case "deepseek_v3":
            latent = {"kv_lora_rank": 6, "qk_rope_head_dim": 4, "qk_nope_head_dim": 5, "v_head_dim": 7}
            rank = {"q_lora_rank": data.draw(st.sampled_from([None, 10])), "first_k_dense_replace": 0}
            shared = {"n_shared_experts": data.draw(st.sampled_from([1, 2])), "moe_intermediate_size": 12}
            return {"n_routed_experts": n_experts, "num_experts_per_tok": 2, "n_group": 1, **latent, **rank, **shared}
        case "qwen3_next":
            sizes = {"linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 3}
            heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
            layers = {"num_hidden_layers": 4 * data.draw(st.integers(1, 2))}
            ffn = {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}
            return {"num_experts": n_experts, "num_experts_per_tok": 2, **sizes, **heads, **ffn, **layers}
        case _:
            return {}


def test_bytes_follow_the_quantisation(tmp_path: Path) -> None:
    # Arithmetic: AWQ with groups of 128 has 4 bits, 16 of scale and 4 of zero a group: 4.15625 bits a weight.
    saved(tmp_path, "llama", {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}})
    shape = model_of(tmp_path).shape
    matrices = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert shape.layer_bytes == matrices * 4.15625 / 8 + 2 * 2 * 4096
    assert shape.kv_bytes_per_token == 2 * 2 * 4096 * 32  # 16 bits still
    assert abs(shape.total_bytes / GIB - 3.6) < 0.1  # as TheBloke/Llama-2-7B-AWQ is published: 3.89 GB


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "there is no model_type; known are opt, llama"),
        ('{"model_type": "gemma2"}', "model_type gemma2 is not known; known are opt, llama"),
        ('{"model_type": "llama", "hidden_size": 8}', "llama needs num_hidden_layers, num_attention_heads, vocab_size"),
        ('{"model_type": "opt"}', "opt needs hidden_size, .*, ffn_dim, which the file does not give"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=told) as mistake:
        model_of(tmp_path)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 0), ("hidden_size", "big"), ("vocab_size", -1)])
def test_a_number_that_is_none_is_named(key: str, value: object, tmp_path: Path) -> None:
    saved(tmp_path, "llama", {})
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=f"{key}={value} must be a whole number"):
        model_of(path)


def test_a_quantisation_that_is_not_known_is_named(tmp_path: Path) -> None:
    saved(tmp_path, "llama", {"quantization_config": {"quant_method": "aqlm"}})
    with pytest.raises(ValueError, match="aqlm is not known; known are fp8"):
        model_of(tmp_path)


def test_the_context_of_a_config_bounds_a_trace(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2", {"max_position_embeddings": 777})
    assert context_tokens(str(tmp_path)) == context_tokens(str(tmp_path / "config.json")) == 777
    assert context_tokens("opt_13b") == 2048
    assert context_tokens("mixtral_8x7b") == 32768


def test_every_model_of_the_catalogue_can_be_named() -> None:
    for name in catalogue():
        assert named(name).shape.total_bytes > 0
    with pytest.raises(ValueError, match="did you mean llama_3_8b"):
        named("lama_3_8b")
