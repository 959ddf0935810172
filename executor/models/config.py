"""Read the ``config.json`` of a Hugging Face model folder as a ``DecoderSpec``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from executor.models.spec import DecoderSpec, ExpertSpec, Family, RotaryScaling
from policies.types import ModelShape

Config = dict[str, Any]

OPT_REQUIRES = {
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "_remove_final_layer_norm": False,
}
"""What OPT's layer here assumes, which is what a configuration without the key means; OPT-350m differs."""

LLAMA_REQUIRES = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
"""Likewise for Llama."""

MOE_REQUIRES = {
    "hidden_act": "silu",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
}
"""Likewise for Qwen3-MoE and Mixtral."""


def read_spec(folder: Path, dtype: torch.dtype) -> DecoderSpec:
    """Describe the model of a folder, to be run in ``dtype``.

    Raises:
        ValueError: there is no readable configuration, or this decoder does not cover it.
    """
    path = folder / "config.json"
    try:
        config: Config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} has no config.json: name the folder of a Hugging Face model") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    try:
        match config.get("model_type"):
            case "opt":
                return _opt_spec(config, folder.name, dtype)
            case "llama":
                return _llama_spec(config, folder.name, dtype)
            case "qwen3_moe" | "mixtral" as kind:
                return _moe_spec(config, folder.name, dtype, is_qwen3=kind == "qwen3_moe")
            case other:
                raise ValueError(f"model_type {other!r} is none of opt, llama, qwen3_moe and mixtral")
    except KeyError as error:
        raise ValueError(f"{path} lacks {error.args[0]!r}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _opt_spec(config: Config, name: str, dtype: torch.dtype) -> DecoderSpec:
    hidden, n_heads = config["hidden_size"], config["num_attention_heads"]
    _require(config, {**OPT_REQUIRES, "word_embed_proj_dim": hidden})
    positions = config["max_position_embeddings"]
    tied = config.get("tie_word_embeddings", True)
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * config["ffn_dim"] + config["ffn_dim"] + hidden + 4 * hidden
    outer = ((1 if tied else 2) * config["vocab_size"] + positions + 2) * hidden + 2 * hidden
    shape = ModelShape(
        name=name,
        n_layers=config["num_hidden_layers"],
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=hidden // n_heads,
        ffn=config["ffn_dim"],
        vocab=config["vocab_size"],
        gated_mlp=False,
        layer_bytes=layer * dtype.itemsize,
        total_bytes=(config["num_hidden_layers"] * layer + outer) * dtype.itemsize,
        max_context_tokens=positions,
        dtype_bytes=dtype.itemsize,
    )
    return DecoderSpec(shape=shape, family=Family.OPT, dtype=dtype, tied_head=tied)


def _llama_spec(config: Config, name: str, dtype: torch.dtype) -> DecoderSpec:
    _require(config, LLAMA_REQUIRES)
    hidden, n_heads, ffn = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_dim = config.get("head_dim") or hidden // n_heads
    tied = config.get("tie_word_embeddings", False)
    layer = 2 * (n_heads + n_kv_heads) * head_dim * hidden + 3 * hidden * ffn + 2 * hidden
    outer = ((1 if tied else 2) * config["vocab_size"] + 1) * hidden
    shape = ModelShape(
        name=name,
        n_layers=config["num_hidden_layers"],
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=config["vocab_size"],
        gated_mlp=True,
        layer_bytes=layer * dtype.itemsize,
        total_bytes=(config["num_hidden_layers"] * layer + outer) * dtype.itemsize,
        max_context_tokens=config["max_position_embeddings"],
        dtype_bytes=dtype.itemsize,
    )
    theta, scaling = _rotary(config)
    return DecoderSpec(
        shape=shape,
        family=Family.LLAMA,
        dtype=dtype,
        norm_eps=config["rms_norm_eps"],
        rotary_theta=theta,
        rotary_scaling=scaling,
        tied_head=tied,
    )


def _moe_spec(config: Config, name: str, dtype: torch.dtype, *, is_qwen3: bool) -> DecoderSpec:
    _require({**config, "mlp_only_layers": config.get("mlp_only_layers") or []}, MOE_REQUIRES)
    if not is_qwen3 and config.get("sliding_window"):
        raise ValueError(f"sliding_window={config['sliding_window']} is not supported, only null")
    hidden, n_heads = config["hidden_size"], config["num_attention_heads"]
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    head_dim = config.get("head_dim") or hidden // n_heads
    experts = ExpertSpec(
        n_experts=config.get("num_local_experts") or config["num_experts"],  # so called before transformers 5
        n_active=config["num_experts_per_tok"],
        ffn=config["moe_intermediate_size" if is_qwen3 else "intermediate_size"],
        normalises=not is_qwen3 or config.get("norm_topk_prob", False),
    )
    tied = config.get("tie_word_embeddings", False)
    layer = 2 * (n_heads + n_kv_heads) * head_dim * hidden + experts.n_experts * hidden + 2 * hidden
    layer += 2 * head_dim * is_qwen3
    outer = ((1 if tied else 2) * config["vocab_size"] + 1) * hidden
    shape = ModelShape(
        name=name,
        n_layers=config["num_hidden_layers"],
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ffn=experts.ffn,
        vocab=config["vocab_size"],
        gated_mlp=True,
        layer_bytes=layer * dtype.itemsize,
        total_bytes=(config["num_hidden_layers"] * layer + outer) * dtype.itemsize,
        max_context_tokens=config["max_position_embeddings"],
        dtype_bytes=dtype.itemsize,
    )
    theta, scaling = _rotary(config)
    return DecoderSpec(
        shape=shape,
        family=Family.MOE,
        dtype=dtype,
        norm_eps=config["rms_norm_eps"],
        rotary_theta=theta,
        rotary_scaling=scaling,
        tied_head=tied,
        experts=experts,
        norms_heads=is_qwen3,
    )


def _rotary(config: Config) -> tuple[float, RotaryScaling | None]:
    """Read base and scaling: under ``rope_parameters`` since transformers 5, before that at the top."""
    entry: Config = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(entry.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    match entry.get("rope_type", entry.get("type", "default")):
        case "default":
            return theta, None
        case "llama3":
            return theta, RotaryScaling(
                factor=entry["factor"],
                low_freq_factor=entry["low_freq_factor"],
                high_freq_factor=entry["high_freq_factor"],
                n_original_positions=entry["original_max_position_embeddings"],
            )
        case other:
            raise ValueError(f"rope type {other!r} is neither default nor llama3")


def _require(config: Config, wanted: Config) -> None:
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key}={config[key]!r} is not supported, only {value!r}")
