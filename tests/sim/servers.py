"""A made-up server and its GPU in LLMServingSim's files: tiny, with times that can be added up by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MODEL = "meta-llama/Llama-3.2-1B"
N_LAYERS = 16  # conf/served_models.yaml

DENSE_US: Mapping[str, float] = {
    "embedding": 2,
    "layernorm": 2,
    "qkv_proj": 10,
    "rotary_emb": 2,
    "o_proj": 10,
    "gate_up_proj": 20,
    "act_fn": 2,
    "down_proj": 10,
    "final_layernorm": 2,
}
"""The same for any number of tokens. Kernels without weights take 2 us: that is what beginning and ending takes."""

OTHERS_NS = 2 * 2000 + 10_000 + 2000 + 10_000 + 20_000 + 2000 + 10_000
"""A layer without attention, kernel by kernel: two norms, and each other once."""
LAUNCHED_AHEAD_NS = 8000 + 8000 + 18_000 + 8000
"""The same with 2 us less for every kernel."""
HEAD_US = {"lm_head": 32, "sampler": 12}


def decode_us(n_decodes: int, context: int) -> float:
    """Attention of decodes of equal contexts."""
    return 10 + n_decodes * context / 16


def prompt_us(n_new: int, n_before: int) -> float:
    """Attention of one prompt: so much for a query and a key."""
    return 8 + n_new * (n_before + n_new / 2) / 256


def write_csv(path: Path, columns: str, rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns.split(","))
        writer.writerows(rows)


def attention_rows() -> list[tuple[int, int, int, int, float]]:
    sizes, contexts = (16, 32, 64, 128), (16, 64, 256, 1024)
    rows: list[tuple[int, int, int, int, float]] = []
    rows += [(0, 0, n, kv, decode_us(n, kv)) for n in (1, 2, 4, 8) for kv in contexts]
    for n_new in sizes:
        for before in (0, *contexts):
            rows.append((n_new, before, 0, 0, prompt_us(n_new, before)))
            rows += [
                (n_new, before, n, kv, prompt_us(n_new, before) + decode_us(n, kv) - 10)
                for n in (1, 8)
                for kv in contexts
            ]
    return rows


def write_profile(folder: Path, *, n_ranks: int = 1, experts: bool = False) -> None:
    """A layer profile with one degree of tensor parallelism."""
    at = folder / "layer_profile" / f"tp{n_ranks}"
    at.mkdir(parents=True)
    (folder / "layer_profile" / "meta.yaml").write_text("gpu: a made-up GPU\nmodel: made up\n")
    names = [name for name in DENSE_US if not experts or name not in ("gate_up_proj", "act_fn", "down_proj")]
    write_csv(at / "dense.csv", "layer,tokens,time_us", [(each, n, DENSE_US[each]) for each in names for n in (1, 128)])
    heads = [(name, n, us) for name, us in HEAD_US.items() for n in (1, 8)]
    write_csv(at / "per_sequence.csv", "layer,sequences,time_us", heads)
    write_csv(at / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", attention_rows())
    if experts:
        rows = [(n, e, 5 + 3 * e) for n in (1, 4, 64) for e in (2, 4, 8) if 2 <= e <= 2 * n]
        write_csv(at / "moe.csv", "tokens,activated_experts,time_us", rows)


def meta(**changes: Any) -> dict[str, Any]:
    """A server that schedules one step ahead and launches kernel behind kernel, without graphs."""
    return {
        "schema_version": 1,
        "model": MODEL,
        "vllm_version": "0.19.0",
        "engine_kwargs": {"tensor_parallel_size": 1, "max_num_seqs": 8, "max_num_batched_tokens": 128},
        "started_at": "2026-11-29T10:00:00.000000Z",
        "tick_seconds": 1.0,
        "kv_cache": {"num_gpu_blocks": 65, "block_size": 16, "enable_prefix_caching": True},
        "hardware": {"device_name": "a made-up GPU"},
        "resolved_config": {
            "model_config": {"max_model_len": 1024},
            "scheduler_config": {"async_scheduling": True, "scheduler_reserve_full_isl": True},
            "compilation_config": {"cudagraph_mode": "NONE"},
        },
        **changes,
    }


WALL_S = 1795946400  # 2026-11-29 10:00:00 UTC
ENGINE_S = 5000


def logged(
    number: int, n_prompt: int, n_output: int, arrival_s: float, first_s: float, last_s: float
) -> dict[str, Any]:
    """A line of ``requests.jsonl``; arrivals are on the wall clock, the rest on the engine's."""
    return {
        "request_id": f"bench-{number}",
        "input_toks": n_prompt,
        "output_toks": n_output,
        "arrival_time": WALL_S + arrival_s,
        "queued_ts": ENGINE_S + arrival_s,
        "scheduled_ts": ENGINE_S + arrival_s,
        "first_token_ts": ENGINE_S + first_s,
        "last_token_ts": ENGINE_S + last_s,
    }


def write_run(folder: Path, lines: Sequence[Mapping[str, Any]], its: Mapping[str, Any] | None = None) -> Path:
    """``meta.json`` and ``requests.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(its or meta()))
    (folder / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_trace(folder: Path, ids: Sequence[Sequence[int]], outputs: Sequence[int]) -> None:
    """``trace.jsonl``: the prompts token by token, a second apart."""
    lines = [
        {"input_toks": len(each), "output_toks": n, "arrival_time_ns": at * 10**9, "input_tok_ids": [*each]}
        for at, (each, n) in enumerate(zip(ids, outputs, strict=True))
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
