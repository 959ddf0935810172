"""The architectures that are known: from the keys of a ``config.json`` to the parts of the model.

Source: the modules of Hugging Face transformers (5.24), which every one of these is held against in
``tests/traces/test_hf_models.py``, to the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traces.hf import dense, mixtures
from traces.hf.config import HfConfig
from traces.hf.parts import Parts

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
"""Keys that every architecture needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How the parts follow from a config, and the keys that takes besides ``SIZES``."""

    parts: Callable[[HfConfig], Parts]
    needs: tuple[str, ...]


_MLP = ("intermediate_size",)
_EXPERTS = ("moe_intermediate_size", "num_experts_per_tok")
_LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_DELTA = (
    "linear_conv_kernel_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "opt": Architecture(parts=dense.opt, needs=("ffn_dim",)),
    "llama": Architecture(parts=dense.llama, needs=_MLP),
    "mistral": Architecture(parts=dense.mistral, needs=_MLP),
    "qwen2": Architecture(parts=dense.qwen2, needs=_MLP),
    "qwen3": Architecture(parts=dense.qwen3, needs=_MLP),
    "qwen3_moe": Architecture(parts=mixtures.qwen3_moe, needs=("num_experts", *_EXPERTS)),
    "mixtral": Architecture(parts=mixtures.mixtral, needs=("num_experts", "num_experts_per_tok", *_MLP)),
    "gpt_oss": Architecture(parts=mixtures.gpt_oss, needs=("num_experts", "num_experts_per_tok", *_MLP)),
    "deepseek_v3": Architecture(
        parts=mixtures.deepseek_v3, needs=("num_experts", "first_k_dense_replace", *_EXPERTS, *_LATENT, *_MLP)
    ),
    "qwen3_next": Architecture(
        parts=mixtures.qwen3_next, needs=("num_experts", "shared_expert_intermediate_size", *_EXPERTS, *_DELTA)
    ),
}
"""By ``model_type``."""


def parts_of(config: HfConfig) -> Parts:
    """Work out the parts.

    Raises:
        ValueError: the architecture is unknown, or the file lacks a key, or a number is out of range.
    """
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        told = f"model_type {config.model_type} is not known" if config.model_type else "there is no model_type"
        mend = "if the model is built like one of these, name that in a copy of the file"
        raise ValueError(f"{config.path}: {told}; known are {', '.join(ARCHITECTURES)}; {mend}")
    config.require([*SIZES, *known.needs])
    return known.parts(config)
