"""How a vLLM server was set: what ``meta.json`` of LLMServingSim's bench says was resolved, else what was asked for.

Source: github.com/casys-kaist/LLMServingSim, bench/core/recorder.py; names and defaults are vLLM's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from policies.types import GB

RESERVES_SINCE = (0, 16)
"""Later versions than 0.15.1 admit a prompt only if all of it fits (``scheduler_reserve_full_isl``)."""

MOST_BLOCKS = 2**26
"""A petabyte of KV cache in blocks of 16 tokens and 1 MiB a token: more is a slip of the pen."""

NO_GRAPHS, PIECEWISE, FULL = 0, 1, 2
"""vLLM's CUDAGraphMode; a pair is that of decodes alone and that of other steps."""

GRAPH_MODES: Mapping[object, tuple[int, int]] = {
    "NONE": (NO_GRAPHS, NO_GRAPHS),
    "PIECEWISE": (PIECEWISE, PIECEWISE),
    "FULL": (FULL, FULL),
    "FULL_DECODE_ONLY": (FULL, NO_GRAPHS),
    "FULL_AND_PIECEWISE": (FULL, PIECEWISE),
    0: (NO_GRAPHS, NO_GRAPHS),
    1: (PIECEWISE, PIECEWISE),
    2: (FULL, FULL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What of a server's settings decides how it schedules and computes.

    Attributes:
        started: its wall clock when requests could come, ISO 8601; ``None`` if it was not kept.
        n_blocks, block_tokens: the KV cache of one engine; one block is vLLM's placeholder.
        n_ranks, n_engines: tensor and data parallelism; ``spreads_experts``: expert parallelism over all of them.
        graph_sizes: tokens that CUDA graphs were captured for, increasing; empty: none.
        decode_graphs, other_graphs: for steps of decodes alone, and for others (``NO_GRAPHS`` ...).
        is_eager: kernels are launched one by one.
        link_bytes_per_s, link_latency_ns: between ranks, as the simulator's ``config.json`` has it.
    """

    model: str
    vllm_version: str
    device: str
    started: str | None
    tick_s: float
    n_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    chunked_prefill: bool
    async_scheduling: bool
    reserve_full_isl: bool
    long_prefill_tokens: int
    n_ranks: int
    n_engines: int
    spreads_experts: bool
    graph_sizes: Sequence[int]
    decode_graphs: int
    other_graphs: int
    is_eager: bool
    link_bytes_per_s: int | None
    link_latency_ns: int | None


class Document:
    """A JSON object, asked by dotted names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(
                f"{path} is not there; name a folder with a run as LLMServingSim's bench keeps it"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: no JSON ({error}); give the file as published") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path} is no JSON object; give the file as published")
        self._value = cast("Mapping[str, object]", value)

    def get(self, *names: str) -> object:
        """What stands under the first of these dotted names that is there and not null."""
        for name in names:
            value: object = self._value
            for key in name.split("."):
                value = cast("Mapping[str, object]", value).get(key) if isinstance(value, dict) else None
            if value is not None:
                return value
        return None

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def count(self, *names: str, default: int | None = None, least: int = 1, most: int = 2**31 - 1) -> int:
        """A whole number within bounds."""
        value = self.get(*names)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(names[0], value, f"a whole number of {least} to {most}")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(names[0], value, "true or false")
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """A positive number; of several the first (a simulated network may have one a dimension)."""
        value = self.get(name)
        if isinstance(value, list):
            value = next(iter(cast("list[object]", value)), None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(name, value, "a positive number")
        return float(value)

    def wrong(self, name: str, value: object, wanted: str) -> ValueError:
        """What is wrong with a value."""
        found = "is not there" if value is None else f"is {repr(value)[:40]}"
        return ValueError(f"{self._path}: {name} {found}, it must be {wanted}; give the file as published")


def read_settings(folder: Path) -> ServerSettings:
    """Read ``meta.json``, and of ``config.json`` the link between GPUs if it is there.

    Raises:
        ValueError: a file is missing or faulty, or the server did what is not simulated.
    """
    meta = Document(folder / "meta.json")
    _refuse(meta, folder / "meta.json")
    version = meta.text("vllm_version", "unknown")
    is_eager = meta.flag("resolved_config.model_config.enforce_eager", "engine_kwargs.enforce_eager", default=False)
    decode_graphs, other_graphs = (NO_GRAPHS, NO_GRAPHS) if is_eager else _graphs(meta)
    link = Document(folder / "config.json") if (folder / "config.json").exists() else None
    bandwidth = link.number("link_bw") if link is not None else None
    latency = link.number("link_latency") if link is not None else None
    return ServerSettings(
        model=meta.text("model"),
        vllm_version=version,
        device=meta.text("hardware.device_name", "an unnamed GPU"),
        started=meta.text("started_at", "") or None,
        tick_s=meta.number("tick_seconds", 1.0) or 1.0,
        n_blocks=meta.count(
            "kv_cache.num_gpu_blocks", "resolved_config.cache_config.num_gpu_blocks", least=2, most=MOST_BLOCKS
        ),
        block_tokens=meta.count("kv_cache.block_size", "resolved_config.cache_config.block_size"),
        max_num_seqs=_scheduler(meta, "max_num_seqs"),
        max_num_batched_tokens=_scheduler(meta, "max_num_batched_tokens"),
        max_model_len=meta.count(
            "resolved_config.model_config.max_model_len",
            "resolved_config.scheduler_config.max_model_len",
            "engine_kwargs.max_model_len",
        ),
        prefix_caching=meta.flag(
            "kv_cache.enable_prefix_caching", "resolved_config.cache_config.enable_prefix_caching", default=True
        ),
        chunked_prefill=meta.flag("resolved_config.scheduler_config.enable_chunked_prefill", default=True),
        async_scheduling=meta.flag("resolved_config.scheduler_config.async_scheduling", default=True),
        reserve_full_isl=meta.flag(
            "resolved_config.scheduler_config.scheduler_reserve_full_isl", default=_version(version) >= RESERVES_SINCE
        ),
        long_prefill_tokens=meta.count(
            "resolved_config.scheduler_config.long_prefill_token_threshold", default=0, least=0
        ),
        n_ranks=_parallel(meta, "tensor_parallel_size"),
        n_engines=_parallel(meta, "data_parallel_size"),
        spreads_experts=meta.flag(
            "resolved_config.parallel_config.enable_expert_parallel",
            "engine_kwargs.enable_expert_parallel",
            default=False,
        ),
        graph_sizes=_sizes(meta) if decode_graphs or other_graphs else (),
        decode_graphs=decode_graphs,
        other_graphs=other_graphs,
        is_eager=is_eager,
        link_bytes_per_s=None if bandwidth is None else max(1, round(bandwidth * GB)),
        link_latency_ns=None if latency is None else round(latency),
    )


def _refuse(meta: Document, path: Path) -> None:
    if meta.get("resolved_config.speculative_config", "engine_kwargs.speculative_config") is not None:
        raise ValueError(f"{path}: the server decoded speculatively, which is not simulated; give a run without")
    if _parallel(meta, "pipeline_parallel_size") > 1:
        raise ValueError(f"{path}: the server was a pipeline of GPUs, which is not simulated; give a run without")
    if meta.text("resolved_config.scheduler_config.policy", "fcfs") != "fcfs":
        raise ValueError(f"{path}: the server scheduled by priority, which is not simulated; give a run under fcfs")


def _scheduler(meta: Document, name: str) -> int:
    return meta.count(f"resolved_config.scheduler_config.{name}", f"engine_kwargs.{name}")


def _parallel(meta: Document, name: str) -> int:
    return meta.count(f"resolved_config.parallel_config.{name}", f"engine_kwargs.{name}", default=1)


def _graphs(meta: Document) -> tuple[int, int]:
    """Which graphs were captured; vLLM's default where nothing was kept."""
    mode = meta.get("resolved_config.compilation_config.cudagraph_mode")
    if mode is None:
        return FULL, PIECEWISE
    if isinstance(mode, str):
        mode = mode.rpartition(".")[2].upper()
    pair = tuple(cast("list[object]", mode)) if isinstance(mode, list) else mode
    for known, modes in GRAPH_MODES.items():
        if pair in (known, modes):
            return modes
    raise meta.wrong("resolved_config.compilation_config.cudagraph_mode", pair, "a mode of vLLM's CUDA graphs")


def _sizes(meta: Document) -> tuple[int, ...]:
    """Sizes as they were kept, else vLLM's default: 1, 2, 4, by 8 to 256, by 16 to twice the sequences, 512 at most."""
    name = "resolved_config.compilation_config.cudagraph_capture_sizes"
    sizes = meta.get(name)
    if isinstance(sizes, list):
        sizes = cast("list[object]", sizes)
        if all(type(size) is int and size > 0 for size in sizes):
            return tuple(sorted({cast("int", size) for size in sizes}))
    elif sizes is None or isinstance(sizes, str):  # too long a list is kept as "<list len=...>"
        largest = meta.count(
            "resolved_config.compilation_config.max_cudagraph_capture_size",
            default=min(512, 2 * _scheduler(meta, "max_num_seqs"), _scheduler(meta, "max_num_batched_tokens")),
        )
        return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)) if size <= largest)
    raise meta.wrong(name, sizes, "a list of sizes")


def _version(text: str) -> tuple[int, ...]:
    """``0.19.0`` -> (0, 19, 0); what cannot be read counts as new."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return tuple(map(int, numbers.groups())) if numbers else RESERVES_SINCE
