# pyright: basic
# (torch, safetensors and transformers leave parts of their interfaces untyped)
"""Against transformers: the same weights through safetensors, the same logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from torch import Tensor

from executor.attention.sdpa import SdpaKernels
from executor.models.checkpoint import open_checkpoint
from executor.models.config import read_spec
from executor.models.decoder import build_decoder, greedy
from executor.models.layout import new_region
from executor.models.step import Row
from tests.executor.models.tiny import CPU, Tiny, unwritten_kv

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 97}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "opt": {"ffn_dim": 96, "max_position_embeddings": 96, "word_embed_proj_dim": 64},
    "llama": {"intermediate_size": 96, "max_position_embeddings": 96},
    "llama, grouped heads": {"intermediate_size": 96, "max_position_embeddings": 96, "num_key_value_heads": 2},
    "llama, stretched": {
        "intermediate_size": 96,
        "max_position_embeddings": 96,
        "num_key_value_heads": 1,
        "rope_parameters": LLAMA_3_ROPE,
        "tie_word_embeddings": True,
    },
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.05, torch.float64: 2e-6}
"""Relative. Transformers computes RMSNorm and angles in float32 whatever the data type; bfloat16 has eight bits."""


def reference(name: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(7)
    model: Any
    if name == "opt":
        model = transformers.OPTForCausalLM(transformers.OPTConfig(**SIZES, **CONFIGS[name]))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **CONFIGS[name]))
    for weight in model.parameters():
        weight.data.normal_(0.0, 0.2)
    return model.to(dtype).eval()


def loaded(folder: Path, dtype: torch.dtype) -> Tiny:
    spec, checkpoint = read_spec(folder, dtype), open_checkpoint(folder)
    decoder = build_decoder(spec, checkpoint.load_outer(spec, CPU), SdpaKernels())
    regions = [new_region(decoder.layout.n_bytes, CPU) for _ in range(spec.shape.n_layers)]
    for layer, region in enumerate(regions):
        checkpoint.load_layer(spec, decoder.layout, layer, region)
    return Tiny(spec, decoder, regions, unwritten_kv(spec))


@torch.inference_mode()
def logits_of(model: Any, token_ids: list[int]) -> Tensor:
    return cast(Tensor, model(torch.tensor([token_ids])).logits[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = reference(name, dtype)
    model.save_pretrained(tmp_path)
    tiny = loaded(tmp_path, dtype)
    prompts = [[(7 * i + 3) % 97 for i in range(41)], [(11 * i + 5) % 97 for i in range(20)]]
    _, logits = tiny.step(
        Row(token_ids=prompts[0], n_before=0, blocks=[9, 2, 4]), Row(token_ids=prompts[1], n_before=0, blocks=[7, 1])
    )
    for ours, prompt in zip(logits, prompts, strict=True):
        theirs = logits_of(model, prompt)[-1]
        assert (ours - theirs).norm() <= TOLERANCE[dtype] * theirs.norm()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name, torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    tiny, token_ids = loaded(tmp_path, torch.float32), [5, 50, 7, 91]
    _, logits = tiny.step(Row(token_ids=token_ids, n_before=0, blocks=[3, 8]))
    for _ in range(24):
        token_ids.append(int(greedy(logits)))
        _, logits = tiny.step(Row(token_ids=token_ids[-1:], n_before=len(token_ids) - 1, blocks=[3, 8]))
    expected = token_ids[:4]
    for _ in range(24):
        expected.append(int(logits_of(model, expected)[-1].argmax()))
    assert token_ids == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_of_the_stored_weights(name: str, tmp_path: Path) -> None:
    model = reference(name, torch.float32)
    model.save_pretrained(tmp_path)
    shape = read_spec(tmp_path, torch.float32).shape
    stack = model.model.decoder.layers if name == "opt" else model.model.layers
    assert shape.layer_bytes == sum(weight.nbytes for weight in stack[0].parameters())
    assert shape.total_bytes == sum(weight.nbytes for weight in model.parameters())
