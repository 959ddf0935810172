"""A ``config.json`` as the shape that is served: parameters into bytes, at the precision of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from policies.even_layers import even_layers
from policies.moe import MoeShape
from policies.types import ModelShape
from traces.hf.architectures import parts_of
from traces.hf.config import HfConfig, read_config
from traces.hf.parts import Experts, Layer, Parts

SERVED_BYTES = 2
"""Of a weight, and of a number in the KV cache: vLLM serves float32, float16 and bfloat16 in 16 bits (dtype=auto)."""

MXFP4_BITS = Fraction(17, 4)
"""4 bits and a scale of 8 for every 32. Source: OCP microscaling formats, version 1.0."""

FP8_BITS = 8
"""The scales of its blocks (DeepSeek: 32 bits for every 128 x 128) are left out: 0.02 %."""

GROUP_BITS = 16
"""Scale of a group of AWQ or GPTQ weights; its zero has the bits of a weight."""


MODELOPT = "hf_quant_config.json"
"""Where NVIDIA's ModelOpt writes what others write into ``quantization_config``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """Of a weight in the layers' matrices, and in the experts'."""

    layer: Fraction = Fraction(8 * SERVED_BYTES)
    expert: Fraction = Fraction(8 * SERVED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """What follows from a ``config.json``.

    Attributes:
        moe: of a mixture of experts, every kind of layer by itself.
        shape: as it is served; of a mixture the mean over its layers.
    """

    path: Path
    model_type: str
    parts: Parts
    bits: Bits
    shape: ModelShape
    moe: MoeShape | None = None


def model_of(path: Path) -> HfModel:
    """Derive a model from its ``config.json``, named itself or by its folder.

    Raises:
        ValueError: there is no such file, its architecture is unknown, or something is missing in it.
    """
    config = read_config(path)
    parts, bits = parts_of(config), _bits(config)
    try:
        moe = None if parts.experts is None else _mixture(config, parts, parts.experts, bits)
        shape = _dense(config, parts, bits) if moe is None else even_layers(moe)
    except ValueError as error:
        raise ValueError(f"{config.path}: {error}") from None
    return HfModel(path=config.path, model_type=config.model_type, parts=parts, bits=bits, shape=shape, moe=moe)


def _bits(config: HfConfig) -> Bits:
    found: Any = config.values.get("quantization_config")
    if not isinstance(found, dict):
        if (config.path.parent / MODELOPT).exists():
            raise ValueError(f"{config.path}: {MODELOPT} beside it says how it is quantised, which is not known here")
        return Bits()
    given = cast("dict[str, Any]", found)
    match str(given.get("quant_method", "")):
        case "fp8":
            return Bits(layer=Fraction(FP8_BITS), expert=Fraction(FP8_BITS))
        case "mxfp4":
            return Bits(expert=MXFP4_BITS)
        case "awq" | "gptq" if isinstance(given.get("bits"), int) and isinstance(given.get("group_size"), int):
            bits, group = given["bits"], given["group_size"]
            weight = Fraction(bits) + (Fraction(GROUP_BITS + bits, group) if group > 0 else 0)
            return Bits(layer=weight, expert=weight)
        case "compressed-tensors" if (weights := _group_weights(given)) is not None:
            bits, group = weights
            weight = Fraction(bits) + (Fraction(GROUP_BITS, group) if group else 0)
            return Bits(layer=weight, expert=weight)
        case method:
            raise ValueError(
                f"{config.path}: quantization_config of {method or 'no quant_method'} is not known; "
                "known are fp8, mxfp4, compressed-tensors, awq and gptq with bits and group_size"
            )


def _group_weights(given: dict[str, Any]) -> tuple[int, int | None] | None:
    """Bits and group size of the weights, where all groups of a compressed-tensors config have the same."""
    groups: Any = given.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return None
    found: set[tuple[int, int | None]] = set()
    for group in cast("dict[str, Any]", groups).values():
        told: Any = cast("dict[str, Any]", group).get("weights") if isinstance(group, dict) else None
        weights = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        bits, size = weights.get("num_bits"), weights.get("group_size")
        if not isinstance(bits, int):
            return None
        found.add((bits, size if isinstance(size, int) and size > 0 else None))
    return found.pop() if len(found) == 1 else None


def _bytes(n_params: int, bits: Fraction) -> int:
    return int(-(-n_params * bits // 8))


def _dense(config: HfConfig, parts: Parts, bits: Bits) -> ModelShape:
    layer = parts.layers[0]
    layer_bytes = _layer_bytes(layer, bits)
    kv_bytes = SERVED_BYTES * sum(each.n_cached for each in parts.layers)
    is_quantised = bits.layer != 8 * SERVED_BYTES
    return ModelShape(
        name=config.name,
        n_layers=len(parts.layers),
        hidden=parts.hidden,
        n_heads=parts.n_heads,
        n_kv_heads=parts.n_kv_heads,
        head_dim=parts.head_dim,
        ffn=parts.ffn,
        vocab=parts.vocab,
        gated_mlp=parts.gated,
        layer_bytes=layer_bytes,
        total_bytes=len(parts.layers) * layer_bytes + SERVED_BYTES * parts.outside,
        max_context_tokens=parts.context_tokens,
        dtype_bytes=max(1, round(bits.layer / 8)),
        kv_token_bytes=kv_bytes if is_quantised else None,
    )


def _layer_bytes(layer: Layer, bits: Bits) -> int:
    return _bytes(layer.mixer + layer.mlp, bits.layer) + SERVED_BYTES * (layer.norms + layer.router)


def _mixture(config: HfConfig, parts: Parts, experts: Experts, bits: Bits) -> MoeShape:
    attending = [layer for layer in parts.layers if layer.n_cached]
    sparse = [layer for layer in parts.layers if layer.n_experts]
    dense = [layer for layer in parts.layers if not layer.n_experts]
    if not attending or not sparse:
        raise ValueError(f"{config.model_type} without a layer of attention or of experts")
    if list(parts.layers[: len(dense)]) != dense:
        raise ValueError("dense layers between those with experts are not known; known are dense layers first")
    return MoeShape(
        name=config.name,
        n_layers=len(parts.layers),
        hidden=parts.hidden,
        n_heads=parts.n_heads,
        head_dim=parts.head_dim,
        vocab=parts.vocab,
        attention_params=attending[0].mixer,
        kv_bytes_per_layer=SERVED_BYTES * attending[0].n_cached,
        n_kv_shards=parts.n_kv_heads,
        norm_params=parts.layers[0].norms,
        router_params=sparse[0].router,
        shared_params=sparse[0].mlp,
        n_experts=sparse[0].n_experts,
        n_active=experts.n_active,
        expert_ffn=experts.ffn,
        expert_params=experts.params,
        gate_up_bytes=_bytes(experts.gate_up_weights, bits.expert),
        down_bytes=_bytes(experts.down_weights, bits.expert),
        total_params=parts.n_params,
        max_context_tokens=parts.context_tokens,
        n_dense_layers=len(dense),
        dense_params=dense[0].mlp if dense else 0,
        delta_net=parts.delta_net,
        dtype_bytes=max(1, round(bits.layer / 8)),
    )
