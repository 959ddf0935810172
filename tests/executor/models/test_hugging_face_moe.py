# pyright: basic
# (torch, safetensors and transformers leave parts of their interfaces untyped)
"""Mixtures of experts against transformers: the same weights, the same logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from executor.models.checkpoint import open_checkpoint
from executor.models.config import read_spec
from executor.models.decoder import greedy
from executor.models.step import Row
from tests.executor.models.test_hugging_face import logits_of
from tests.executor.models.tiny_moe import TinyMoe, loaded

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 97, "head_dim": 16}
QWEN3 = {
    "num_key_value_heads": 2,
    "moe_intermediate_size": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "max_position_embeddings": 96,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3, weights as they are": {**QWEN3, "norm_topk_prob": False, "num_key_value_heads": 4},
    "mixtral": {
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 96,
    },
}
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.1}
"""Relative, as for dense models. In bfloat16 a row may be routed to another expert where two are all but alike."""


def reference(name: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(7)
    model: Any
    if name == "mixtral":
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **CONFIGS[name]))
    else:
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **CONFIGS[name]))
    for weight in model.parameters():
        weight.data.normal_(0.0, 0.2)
    return model.to(dtype).eval()


def ours(folder: Path, dtype: torch.dtype) -> TinyMoe:
    return loaded(read_spec(folder, dtype), open_checkpoint(folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = reference(name, dtype)
    model.save_pretrained(tmp_path)
    tiny = ours(tmp_path, dtype)
    prompts = [[(7 * i + 3) % 97 for i in range(41)], [(11 * i + 5) % 97 for i in range(20)]]
    _, logits = tiny.step(
        Row(token_ids=prompts[0], n_before=0, blocks=[9, 2, 4]), Row(token_ids=prompts[1], n_before=0, blocks=[7, 1])
    )
    for mine, prompt in zip(logits, prompts, strict=True):
        theirs = logits_of(model, prompt)[-1]
        assert (mine - theirs).norm() <= TOLERANCE[dtype] * theirs.norm()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference(name, torch.float32)
    model.save_pretrained(tmp_path)
    tiny, token_ids = ours(tmp_path, torch.float32), [5, 50, 7, 91]
    _, logits = tiny.step(Row(token_ids=token_ids, n_before=0, blocks=[3, 8]))
    for _ in range(24):
        token_ids.append(int(greedy(logits)))
        _, logits = tiny.step(Row(token_ids=token_ids[-1:], n_before=len(token_ids) - 1, blocks=[3, 8]))
    expected = token_ids[:4]
    for _ in range(24):
        expected.append(int(logits_of(model, expected)[-1].argmax()))
    assert token_ids == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_of_the_stored_weights_without_experts(name: str, tmp_path: Path) -> None:
    model = reference(name, torch.float32)
    model.save_pretrained(tmp_path)
    shape = read_spec(tmp_path, torch.float32).shape
    outside = {key: weight.nbytes for key, weight in model.named_parameters() if ".experts." not in key}
    assert shape.total_bytes == sum(outside.values())
    assert shape.layer_bytes == sum(n_bytes for key, n_bytes in outside.items() if ".layers.0." in key)
