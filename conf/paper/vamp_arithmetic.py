"""VAMP's numbers that follow from sizes and rates: what a GPU holds, what a reload costs, how large models are."""

from __future__ import annotations

from collections.abc import Mapping

from conf.carry_out import open_books
from conf.models import named
from conf.paper.collect import composed
from conf.paper.drawn import Drawn, Numbers
from conf.run import Run
from policies.costs import Coefficients, offload_us
from policies.moe import MoeShape
from policies.types import GIB, NS_PER_S
from traces.plots.paper import Bars, draw

NS_PER_MS = 10**6
MIB = 2**20

PLATFORMS: Mapping[str, str] = {"h100": "vamp/table2", "h200": "vamp/decisions"}
"""An experiment on each, whose first system lends nothing."""

KV_TOKENS = 10_000
"""Of the request whose KV cache section II-A gives."""


def vamp_arithmetic(drawn: Drawn) -> Numbers:
    """Table I, and numbers of sections I, II-A, III-A and V."""
    held = {name: _first_run(experiment) for name, experiment in PLATFORMS.items()}
    memory = {name: _memory_gib(run) for name, run in held.items()}
    parts = list(next(iter(memory.values())))
    panel = Bars(
        title="HBM of a GPU",
        ylabel="GiB",
        groups=parts,
        values={name: [of[part] for part in parts] for name, of in memory.items()},
    )
    draw("Table I: what a GPU holds", [[panel]], drawn.figure)
    numbers = {f"{part}_gib_{name}": gib for name, of in memory.items() for part, gib in of.items()}
    for name, run in held.items():
        numbers |= {f"{key}_{name}": value for key, value in _of_groups(run).items()}
    return {**numbers, **_costs(held["h100"]), **_models()}


def _first_run(experiment: str) -> Run:
    return composed(experiment).runs[0]


def _memory_gib(run: Run) -> dict[str, float]:
    """What a GPU has, what the experts take of it, and what is left for KV cache."""
    assert run.moe is not None
    _, (lane,) = open_books(run)
    experts = run.moe.shape.experts(run.moe.n_ranks, run.hardware.page_bytes)
    kv_bytes = lane.scheduler.pool.n_base * lane.shape.block_bytes(run.moe.shape.block_tokens(run.moe.n_ranks))
    in_bytes = {"hbm": run.hardware.hbm_bytes, "experts": experts.total_bytes, "kv": kv_bytes}
    return {part: n_bytes / GIB for part, n_bytes in in_bytes.items()}


def _of_groups(run: Run) -> dict[str, float]:
    """How many expert shards fill whole pages, and what they take."""
    assert run.moe is not None
    experts = run.moe.shape.experts(run.moe.n_ranks, run.hardware.page_bytes)
    return {
        "group_shards": float(experts.group_shards),
        "group_mib": experts.group_bytes / MIB,
    }


def _costs(run: Run) -> dict[str, float]:
    """A token's experts over this link, and what the cost model charges for one shard and step by the paper's rate."""
    assert run.moe is not None
    shape = run.moe.shape
    experts = shape.experts(run.moe.n_ranks, run.hardware.page_bytes)
    n_bytes = shape.n_active * experts.shard_bytes
    return {
        "reload_ms": n_bytes * NS_PER_S / run.hardware.link.h2d_bytes_per_s / NS_PER_MS,
        "shard_step_us": offload_us(1, shape.n_experts, shape.n_active, 1, Coefficients()),
    }


def _models() -> dict[str, float]:
    """Sizes of models that the paper names; Llama 3.1 has those of Llama 3."""
    numbers = {
        "kv_gib_qwen3_8b": KV_TOKENS * named("qwen3_8b").shape.kv_bytes_per_token / GIB,
        "weights_gib_llama_3_8b": named("llama_3_8b").shape.total_bytes / GIB,
        "weights_gib_llama_3_70b": named("llama_3_70b").shape.total_bytes / GIB,
    }
    for model in ("deepseek_v3", "mixtral_8x7b", "qwen3_next_80b_a3b"):
        shape = _moe(model)
        numbers[f"total_over_active_{model}"] = shape.total_params / shape.active_params
    return numbers


def _moe(model: str) -> MoeShape:
    found = named(model).moe
    assert found is not None
    return found
