"""The architectures with experts."""

from __future__ import annotations

from policies.moe import DeltaNet
from traces.hf.config import HfConfig
from traces.hf.dense import Biases, assembled, attention
from traces.hf.parts import Experts, Layer, Parts


def qwen3_moe(config: HfConfig) -> Parts:
    """Qwen3-MoE: experts in every layer, but for those that the config names as dense."""
    hidden, ffn = config.count("hidden_size"), config.count("intermediate_size", 1)
    bias = config.flag("attention_bias", False)
    biases = Biases(qkv=bias, out=bias, qk_norm=True)
    n_experts = config.count("num_experts")
    dense, every = config.listed("mlp_only_layers"), config.count("decoder_sparse_step", 1)

    def layer(index: int) -> Layer:
        if index in dense or (index + 1) % every:
            return attention(config, biases, index, mlp=3 * hidden * ffn)
        return attention(config, biases, index, router=hidden * n_experts, n_experts=n_experts)

    experts = _experts(hidden, config.count("moe_intermediate_size"), config.count("num_experts_per_tok"))
    return assembled(config, tuple(map(layer, range(config.count("num_hidden_layers")))), experts)


def mixtral(config: HfConfig) -> Parts:
    """Mixtral: a few large experts in every layer."""
    hidden, n_experts = config.count("hidden_size"), config.count("num_experts")
    layers = tuple(
        attention(config, Biases(), index, router=hidden * n_experts, n_experts=n_experts)
        for index in range(config.count("num_hidden_layers"))
    )
    experts = _experts(hidden, config.count("intermediate_size"), config.count("num_experts_per_tok"))
    return assembled(config, layers, experts)


def gpt_oss(config: HfConfig) -> Parts:
    """gpt-oss: biases, a sink for every head, windows in every other layer."""
    hidden, n_experts = config.count("hidden_size"), config.count("num_experts")
    heads, ffn = config.count("num_attention_heads"), config.count("intermediate_size")
    bias = config.flag("attention_bias", True)
    layers = tuple(
        attention(
            config,
            Biases(qkv=bias, out=bias),
            index,
            router=hidden * n_experts + n_experts,
            n_experts=n_experts,
            more=heads,  # a sink for each
        )
        for index in range(config.count("num_hidden_layers"))
    )
    experts = Experts(
        n_active=config.count("num_experts_per_tok"),
        ffn=ffn,
        gate_up_weights=2 * hidden * ffn,
        down_weights=hidden * ffn,
        biases=2 * ffn + hidden,
    )
    return assembled(config, layers, experts)


def deepseek_v3(config: HfConfig) -> Parts:
    """DeepSeek-V3 without its MTP layer: a latent KV cache, dense layers first, shared experts."""
    hidden, n_experts = config.count("hidden_size"), config.count("num_experts")
    ffn = config.count("moe_intermediate_size")
    n_dense = config.values["first_k_dense_replace"]
    latent = config.count("kv_lora_rank") + config.count("qk_rope_head_dim")

    def layer(index: int) -> Layer:
        is_dense = index < n_dense
        shared = 3 * hidden * ffn * int(config.values.get("n_shared_experts") or 0)
        return Layer(
            mixer=_latent_attention(config),
            norms=2 * hidden,
            mlp=3 * hidden * config.count("intermediate_size") if is_dense else shared,
            router=0 if is_dense else hidden * n_experts + n_experts,  # and a correction for each expert
            n_experts=0 if is_dense else n_experts,
            n_cached=latent,
        )

    layers = tuple(map(layer, range(config.count("num_hidden_layers"))))
    experts = _experts(hidden, ffn, config.count("num_experts_per_tok"))
    width = config.count("qk_nope_head_dim") + config.count("qk_rope_head_dim")
    return assembled(config, layers, experts, n_kv_heads=1, head_dim=width)


def _latent_attention(config: HfConfig) -> int:
    """MLA: queries and keys through a low rank, one latent for all heads."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    rope, nope, value = (config.count(key) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    kv_rank, bias = config.count("kv_lora_rank"), config.flag("attention_bias", False)
    asked = heads * (nope + rope)
    if config.values.get("q_lora_rank") is None:
        query = hidden * asked
    else:
        rank = config.count("q_lora_rank")
        query = hidden * rank + rank * bias + rank + rank * asked
    keys = hidden * (kv_rank + rope) + (kv_rank + rope) * bias + kv_rank + kv_rank * heads * (nope + value)
    return query + keys + heads * value * hidden + hidden * bias


def qwen3_next(config: HfConfig) -> Parts:
    """Qwen3-Next: attention with gated queries in one layer of four, delta-nets in the others."""
    hidden, n_experts = config.count("hidden_size"), config.count("num_experts")
    ffn, bias = config.count("moe_intermediate_size"), config.flag("attention_bias", False)
    biases = Biases(qkv=bias, out=bias, qk_norm=True)
    n_layers, delta = config.count("num_hidden_layers"), _delta_net(config)
    shared = 3 * hidden * config.count("shared_expert_intermediate_size")
    dense, every = config.listed("mlp_only_layers"), config.count("decoder_sparse_step", 1)
    full = _full_attention(config, n_layers)

    def layer(index: int) -> Layer:
        is_dense = index in dense or bool((index + 1) % every)
        mlp = 3 * hidden * config.count("intermediate_size") if is_dense else shared
        router = 0 if is_dense else hidden * n_experts + hidden  # and the gate of the shared expert
        n = 0 if is_dense else n_experts
        if full[index]:
            return attention(config, biases, index, mlp=mlp, router=router, n_experts=n, gated=True)
        mixer = delta.layer_params
        return Layer(mixer=mixer, norms=2 * hidden, mlp=mlp, router=router, n_experts=n, n_cached=0)

    experts = _experts(hidden, ffn, config.count("num_experts_per_tok"))
    return assembled(config, tuple(map(layer, range(n_layers))), experts, delta_net=delta)


def _full_attention(config: HfConfig, n_layers: int) -> list[bool]:
    kinds, every = config.listed("layer_types"), config.count("full_attention_interval", 4)
    if kinds:
        return [kind == "full_attention" for kind in kinds]
    return [(index + 1) % every == 0 for index in range(n_layers)]


def _delta_net(config: HfConfig) -> DeltaNet:
    hidden, width = config.count("hidden_size"), config.count("linear_conv_kernel_dim")
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key_dim, value_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    if key_dim != value_dim:
        raise ValueError(f"{config.path}: linear_key_head_dim={key_dim} and linear_value_head_dim={value_dim} differ")
    mixed = 2 * keys * key_dim + values * value_dim  # what goes through the convolution
    into = hidden * (mixed + values * value_dim) + hidden * 2 * values  # with the gate z; b and a
    own = mixed * width + 2 * values + value_dim  # convolution, decay and its bias, norm
    n_layers = config.count("num_hidden_layers")
    return DeltaNet(
        n_layers=n_layers - sum(_full_attention(config, n_layers)),
        layer_params=into + own + values * value_dim * hidden,
        n_key_heads=keys,
        n_value_heads=values,
        head_dim=value_dim,
        conv_width=width,
    )


def _experts(hidden: int, ffn: int, n_active: int) -> Experts:
    return Experts(n_active=n_active, ffn=ffn, gate_up_weights=2 * hidden * ffn, down_weights=hidden * ffn)
