"""A mix from the names of models: sizes from the catalogue or a Hugging Face config, shares of memory worked out.

- **Activations**: what vLLM's profiling run would need, for a prefill of as many tokens as a step may have and the
  logits of a full batch.
- **KV cache**: what the weights and activations of all models leave, divided so that every model holds tokens in
  proportion to its part of the requests.

Both are ours; ``mix.shares`` are taken as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from conf.models import Named, named
from policies.types import GIB, ModelShape

OMEGACONF_MISSING = "???"

BASE_BYTES = 250_000_000
"""What a server holds besides tensors that grow with a step. Estimate: with it the five models of ``conf/mix`` come out
within 0.25 GB of their estimates there."""

LOGIT_BYTES = 8
"""Of each entry of the logits: in float32, and once more as probabilities."""

DEFAULT_STEP_TOKENS = 2048
"""vLLM 0.7.3's smallest limit of a step without chunked prefill (``Serving.max_num_batched_tokens``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One model of an own mix."""

    key: str
    shape: ModelShape
    activation_bytes: int


def with_own_models(config: dict[str, Any]) -> dict[str, Any]:
    """Fill in the models that ``mix.of`` names, if it names any.

    Args:
        config: a whole configuration as plain values; what is missing is ``???``.

    Raises:
        ValueError: there is no such model, or the models do not fit the memory.
    """
    mix = config["mix"]
    wanted = mix.get("of")
    if not wanted or wanted == OMEGACONF_MISSING:
        return config
    if mix["models"]:
        raise ValueError("mix.of and mix.models exclude each other; set mix=own")
    models = [_own(model, mix["context_tokens"], config["serving"]) for model in each_named(wanted)]
    shares = mix["shares"] or _shares(
        models, mix["memory_share"], config["hardware"], config["workload"].get("weights")
    )
    if len(shares) != len(models):
        raise ValueError(f"mix.shares={shares} are {len(shares)} for {len(models)} models; give one for each")
    filled = {
        own.key: {"shape": asdict(own.shape), "share": share, "activation_bytes": own.activation_bytes}
        for own, share in zip(models, shares, strict=True)
    }
    return {**config, "mix": {**mix, "models": filled, "of": [], "shares": []}}


def each_named(wanted: Sequence[str]) -> Iterator[Named]:
    """Find the models, ``NAME*2`` twice, every one under a key of its own.

    Raises:
        ValueError: there is no such model, or no such number of it.
    """
    counts: dict[str, int] = {}
    for word in wanted:
        found = re.fullmatch(r"(.+?)\*(\d+)", word)
        name, n = (found[1], int(found[2])) if found else (word, 1)
        if not 1 <= n <= 64:
            raise ValueError(f"{word}: {n} is outside 1..64 models")
        model = named(name)
        for _ in range(n):
            counts[model.key] = counts.get(model.key, 0) + 1
            nth = counts[model.key]
            yield model if nth == 1 else replace(model, key=f"{model.key}_{nth}")


def _own(model: Named, context_tokens: int | None, serving: Mapping[str, Any]) -> Own:
    shape = _limited(model.shape, context_tokens)
    return Own(key=model.key, shape=shape, activation_bytes=activations(shape, serving))


def _limited(shape: ModelShape, context_tokens: int | None) -> ModelShape:
    if context_tokens is None:
        return shape
    return replace(shape, max_context_tokens=min(shape.max_context_tokens, context_tokens))


def activations(shape: ModelShape, serving: Mapping[str, Any]) -> int:
    """Estimate the memory for activations and logits, in bytes."""
    n_tokens = serving["max_num_batched_tokens"] or max(shape.max_context_tokens, DEFAULT_STEP_TOKENS)
    inner = 3 * shape.ffn * (shape.mixture.n_active if shape.mixture else 1)  # gate, up, their product
    inner = inner if shape.gated_mlp else 2 * shape.ffn
    of_tokens = n_tokens * (inner + 3 * shape.hidden) * max(2, shape.dtype_bytes)
    return BASE_BYTES + of_tokens + serving["max_num_seqs"] * shape.vocab * LOGIT_BYTES


def _shares(
    models: Sequence[Own], memory_share: float, hardware: Mapping[str, Any], weights: Sequence[float] | None
) -> list[float]:
    """Divide the memory: each model its weights and activations, and the rest by what a request asks for."""
    if not 0 < memory_share <= 1:
        raise ValueError(f"mix.memory_share={memory_share} is outside (0, 1]")
    hbm_bytes, page = hardware["hbm_bytes"], hardware["page_bytes"]
    fixed = [_fixed_pages(own, page) * page for own in models]
    rest = hbm_bytes * memory_share - sum(fixed)
    if rest <= 0:
        raise ValueError(
            f"{', '.join(own.key for own in models)} need {sum(fixed) / GIB:.1f} GiB for weights and activations, and "
            f"{memory_share:.0%} of {hardware['name']} is {hbm_bytes * memory_share / GIB:.1f} GiB; take fewer models, "
            "a larger GPU or a shorter context"
        )
    parts = [1.0] * len(models) if weights is None or len(weights) != len(models) else weights
    asked = [part * own.shape.kv_bytes_per_token for part, own in zip(parts, models, strict=True)]
    return [(own + rest * part / sum(asked)) / hbm_bytes for own, part in zip(fixed, asked, strict=True)]


def _fixed_pages(own: Own, page_bytes: int) -> int:
    shape = own.shape
    parts = (shape.layer_bytes,) * shape.n_layers + (shape.other_bytes, own.activation_bytes)
    return sum(-(-part // page_bytes) for part in parts)
