"""Weights from a folder of ``safetensors`` files, in Hugging Face's names, one layer at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from executor.models.decoder import OPT_POSITION_OFFSET, OuterWeights
from executor.models.layout import LayerLayout
from executor.models.spec import DecoderSpec, Family

OPT_NAMES: Mapping[str, tuple[str, ...]] = {
    "qkv_weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "out_weight": ("self_attn.out_proj.weight",),
    "up_weight": ("fc1.weight",),
    "down_weight": ("fc2.weight",),
    "qkv_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "out_bias": ("self_attn.out_proj.bias",),
    "up_bias": ("fc1.bias",),
    "down_bias": ("fc2.bias",),
    "attention_norm_weight": ("self_attn_layer_norm.weight",),
    "attention_norm_bias": ("self_attn_layer_norm.bias",),
    "mlp_norm_weight": ("final_layer_norm.weight",),
    "mlp_norm_bias": ("final_layer_norm.bias",),
}
"""Field of a packed OPT layer -> the tensors of which it consists, from the first row down."""

LLAMA_NAMES: Mapping[str, tuple[str, ...]] = {
    "qkv_weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "out_weight": ("self_attn.o_proj.weight",),
    "gate_up_weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down_weight": ("mlp.down_proj.weight",),
    "attention_norm_weight": ("input_layernorm.weight",),
    "mlp_norm_weight": ("post_attention_layernorm.weight",),
}
"""Likewise for Llama."""

QWEN3_MOE_NAMES: Mapping[str, tuple[str, ...]] = {
    "qkv_weight": LLAMA_NAMES["qkv_weight"],
    "out_weight": LLAMA_NAMES["out_weight"],
    "router_weight": ("mlp.gate.weight",),
    "attention_norm_weight": LLAMA_NAMES["attention_norm_weight"],
    "mlp_norm_weight": LLAMA_NAMES["mlp_norm_weight"],
    "query_norm_weight": ("self_attn.q_norm.weight",),
    "key_norm_weight": ("self_attn.k_norm.weight",),
}
"""Likewise for Qwen3-MoE without its experts."""

MIXTRAL_NAMES: Mapping[str, tuple[str, ...]] = {**QWEN3_MOE_NAMES, "router_weight": ("block_sparse_moe.gate.weight",)}
"""Likewise for Mixtral."""

EXPERT_NAMES = {
    True: ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    False: ("block_sparse_moe.experts", "w1", "w3", "w2"),
}
"""Where experts are, and what their gate, up and down are called: in Qwen3-MoE, and in Mixtral."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder of weights: which file holds which tensor. Files are opened when their tensors are read.

    Attributes:
        files: name of each tensor, as stored -> its file.
    """

    folder: Path
    files: Mapping[str, Path]

    def load_layer(self, spec: DecoderSpec, layout: LayerLayout, layer: int, region: Tensor) -> None:
        """Copy the weights of one layer into a region, in its data type.

        Args:
            region: (>= n_bytes,) uint8, on any device.

        Raises:
            ValueError: a tensor is missing or has another shape than the model wants, or a file is damaged.
        """
        stack, names = _layer_names(spec)
        for field, view in layout.views(region).items():
            self._fill(view, [f"{stack}{layer}.{name}" for name in names[field]])

    def load_outer(self, spec: DecoderSpec, device: torch.device) -> OuterWeights:
        """Load embeddings, last norm and head onto a device.

        Raises:
            ValueError: as ``load_layer``.
        """
        shape = spec.shape

        def load(name: str, *size: int) -> Tensor:
            tensor = torch.empty(size, dtype=spec.dtype, device=device)
            self._fill(tensor, [name])
            return tensor

        is_opt = spec.family is Family.OPT
        stack = "model.decoder." if is_opt else "model."
        norm = "final_layer_norm" if is_opt else "norm"
        token_embedding = load(f"{stack}embed_tokens.weight", shape.vocab, shape.hidden)
        n_positions = shape.max_context_tokens + OPT_POSITION_OFFSET
        return OuterWeights(
            token_embedding=token_embedding,
            position_embedding=load(f"{stack}embed_positions.weight", n_positions, shape.hidden) if is_opt else None,
            norm_weight=load(f"{stack}{norm}.weight", shape.hidden),
            norm_bias=load(f"{stack}{norm}.bias", shape.hidden) if is_opt else None,
            head=token_embedding if spec.tied_head else load("lm_head.weight", shape.vocab, shape.hidden),
        )

    def load_expert(self, spec: DecoderSpec, layer: int, expert: int, gate_up: Tensor, down: Tensor) -> None:
        """Copy the weights of one expert: gate above up, (2 * ffn, hidden), and down, (hidden, ffn).

        Raises:
            ValueError: as ``load_layer``.
        """
        place, *names = EXPERT_NAMES[spec.norms_heads]
        gate_name, up_name, down_name = (f"model.layers.{layer}.{place}.{expert}.{name}.weight" for name in names)
        self._fill(gate_up, [gate_name, up_name])
        self._fill(down, [down_name])

    def _fill(self, whole: Tensor, names: list[str]) -> None:
        """Fill a tensor with those stored under the names, one below the other."""
        parts = [self._read(name) for name in names]
        rows = sum(part.shape[0] for part in parts)
        if any(part.shape[1:] != whole.shape[1:] for part in parts) or rows != whole.shape[0]:
            found = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(names, parts, strict=True))
            raise ValueError(f"{self.folder}: {found}, but config.json asks for {tuple(whole.shape)} in all")
        first = 0
        for part in parts:
            whole[first : first + part.shape[0]].copy_(part)
            first += part.shape[0]

    def _read(self, name: str) -> Tensor:
        path = self.files.get(name) or self.files.get(name.removeprefix("model."))
        if path is None:
            raise ValueError(f"{self.folder}: no file holds {name}")
        stored = name if name in self.files else name.removeprefix("model.")
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} cannot be read, fetch it again: {error}") from None


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find out which files of a folder hold which tensors.

    Raises:
        ValueError: there are no weights, a file that the index names is missing, or one is damaged.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _open_index(folder, index)
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no *.safetensors file")
    return Checkpoint(folder, {name: path for path in paths for name in _names_in(path)})


def _open_index(folder: Path, index: Path) -> Checkpoint:
    try:
        listed: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (json.JSONDecodeError, KeyError) as error:
        raise ValueError(f"{index} is not an index of weights: {error!r}") from None
    for file in sorted(set(listed.values())):
        if not (folder / file).is_file():
            raise ValueError(f"{folder}: {file}, which {index.name} names, is missing")
    return Checkpoint(folder, {name: folder / file for name, file in listed.items()})


def _names_in(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read, fetch it again: {error}") from None


def _layer_names(spec: DecoderSpec) -> tuple[str, Mapping[str, tuple[str, ...]]]:
    match spec.family:
        case Family.OPT:
            return "model.decoder.layers.", OPT_NAMES
        case Family.LLAMA:
            return "model.layers.", LLAMA_NAMES
        case Family.MOE:
            return "model.layers.", QWEN3_MOE_NAMES if spec.norms_heads else MIXTRAL_NAMES
