"""The architectures without experts, and the attention layer that most of the others have, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from policies.moe import DeltaNet
from traces.hf.config import HfConfig
from traces.hf.parts import Experts, Layer, Parts

OPT_OFFSET = 2
"""Rows of OPT's table of positions beyond its context."""

DEFAULT_HEAD_DIM: Mapping[str, int] = {"qwen3": 128, "gpt_oss": 64, "qwen3_next": 256}
"""Where the class has a default of its own in place of hidden / heads."""


def opt(config: HfConfig) -> Parts:
    """OPT: LayerNorm, biases, an MLP of two matrices, learned positions."""
    hidden, ffn = config.count("hidden_size"), config.count("ffn_dim")
    bias = config.flag("enable_bias", True)
    affine = 2 * hidden * config.flag("layer_norm_elementwise_affine", True)
    heads, n_layers = config.count("num_attention_heads"), config.count("num_hidden_layers")
    word = config.count("word_embed_proj_dim", hidden)
    vocab, context = config.count("vocab_size"), config.count("max_position_embeddings")
    has_last_norm = config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm", False)
    layer = Layer(
        mixer=4 * (hidden * hidden + hidden * bias),
        norms=2 * affine,
        mlp=2 * hidden * ffn + (ffn + hidden) * bias,
        n_cached=2 * hidden,
    )
    outside = vocab * word + (context + OPT_OFFSET) * hidden + affine * has_last_norm
    outside += 2 * word * hidden if word != hidden else 0  # in and out of the layers' width
    outside += 0 if config.flag("tie_word_embeddings", True) else vocab * word
    return Parts(
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        gated=False,
        vocab=vocab,
        context_tokens=context,
        layers=(layer,) * n_layers,
        outside=outside,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """Which projections of attention have one, and whether queries and keys are normed."""

    qkv: bool = False
    out: bool = False
    qk_norm: bool = False


def llama(config: HfConfig) -> Parts:
    """Llama 1 to 3.3, and what was made of it."""
    bias = config.flag("attention_bias", False)
    return _dense(config, Biases(qkv=bias, out=bias), mlp_bias=config.flag("mlp_bias", False))


def mistral(config: HfConfig) -> Parts:
    """Mistral 7B and its kin: no bias anywhere."""
    return _dense(config, Biases())


def qwen2(config: HfConfig) -> Parts:
    """Qwen2 and Qwen2.5: biases on queries, keys and values."""
    return _dense(config, Biases(qkv=True))


def qwen3(config: HfConfig) -> Parts:
    """Qwen3: queries and keys are normed."""
    bias = config.flag("attention_bias", False)
    return _dense(config, Biases(qkv=bias, out=bias, qk_norm=True))


def _dense(config: HfConfig, biases: Biases, *, mlp_bias: bool = False) -> Parts:
    hidden, ffn = config.count("hidden_size"), config.count("intermediate_size")
    mlp = 3 * hidden * ffn + (2 * ffn + hidden) * mlp_bias
    layers = tuple(attention(config, biases, index, mlp=mlp) for index in range(config.count("num_hidden_layers")))
    return assembled(config, layers)


def attention(
    config: HfConfig,
    biases: Biases,
    index: int,
    *,
    mlp: int = 0,
    router: int = 0,
    n_experts: int = 0,
    more: int = 0,
    gated: bool = False,
) -> Layer:
    """A layer with grouped-query attention; ``more``: parameters of its own kind, ``gated``: queries twice."""
    hidden, heads, kv_heads, head_dim = _heads(config)
    query, kv = heads * head_dim, kv_heads * head_dim
    asked = query * (2 if gated else 1)
    mixer = hidden * (asked + 2 * kv) + query * hidden + more
    mixer += (asked + 2 * kv) * biases.qkv + hidden * biases.out + 2 * head_dim * biases.qk_norm
    return Layer(
        mixer=mixer,
        norms=2 * hidden,
        mlp=mlp,
        router=router,
        n_experts=n_experts,
        n_cached=2 * kv,
        window_tokens=_window(config, index),
    )


def _heads(config: HfConfig) -> tuple[int, int, int, int]:
    """Hidden width, heads, KV heads, width of a head."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    return (
        hidden,
        heads,
        config.count("num_key_value_heads", heads),
        config.count("head_dim", DEFAULT_HEAD_DIM.get(config.model_type, hidden // heads)),
    )


def _window(config: HfConfig, index: int) -> int | None:
    window = config.values.get("sliding_window")
    if not isinstance(window, int) or not config.flag("use_sliding_window", not config.model_type.startswith("qwen")):
        return None
    kinds = config.listed("layer_types")
    return window if not kinds or kinds[index] == "sliding_attention" else None


def assembled(
    config: HfConfig,
    layers: tuple[Layer, ...],
    experts: Experts | None = None,
    *,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    delta_net: DeltaNet | None = None,
) -> Parts:
    """Put RMS-normed layers between embeddings and head."""
    hidden, heads, kv_heads, own_dim = _heads(config)
    vocab = config.count("vocab_size")
    is_tied = config.flag("tie_word_embeddings", False)
    return Parts(
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=n_kv_heads or kv_heads,
        head_dim=head_dim or own_dim,
        ffn=config.count("intermediate_size", 1),
        gated=True,
        vocab=vocab,
        context_tokens=config.count("max_position_embeddings"),
        layers=layers,
        outside=vocab * hidden * (1 if is_tied else 2) + hidden,
        experts=experts,
        delta_net=delta_net,
    )
