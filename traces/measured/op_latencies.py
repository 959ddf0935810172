"""Measured latencies of single operations that the package aiconfigurator-core carries, read from its tables.

They are of GEMMs, attention and grouped GEMMs of experts under vLLM, SGLang and TensorRT-LLM, replayed from CUDA
graphs, in milliseconds. Only its Parquet files are read: nothing of the package is imported.

Source: https://pypi.org/project/aiconfigurator-core (Apache-2.0), ``systems/data``.
"""

# pyarrow comes without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import exp, log
from pathlib import Path
from typing import Any

from policies.types import ModelShape

PACKAGE = "aiconfigurator_core"
NS_PER_MS = 1_000_000

FRAMEWORKS = ("vllm", "sglang", "trtllm")
"""Whose measurement is taken, in this order, if it has what is asked for; of each the newest version."""

SIXTEEN_BITS = frozenset({"bfloat16", "float16"})

Points = dict[int, int]
"""Nanoseconds by a count."""


def data_folder() -> Path:
    """Find the package's tables.

    Raises:
        ValueError: it is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            'compute=aiconfigurator needs the package aiconfigurator-core; pip install "hbmlab[aiconfigurator]", or '
            "set compute=roofline"
        )
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpLatencies:
    """The tables of one GPU.

    Raises:
        ValueError: there are none of it.
    """

    gpu: str
    folder: Path

    @classmethod
    def of(cls, gpu: str) -> OpLatencies:
        """Find those of a GPU, as the package calls it."""
        folder = data_folder()
        there = sorted(path.name for path in folder.iterdir() if path.is_dir())
        if gpu not in there:
            raise ValueError(f"compute_tables={gpu}: aiconfigurator-core has no such GPU; it has {', '.join(there)}")
        return cls(gpu=gpu, folder=folder / gpu)

    def gemm(self, sizes: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Points]:
        """Latency by tokens of ``(tokens, k) x (k, n)`` for each (n, k).

        Between measured sizes it goes in proportion to powers of n and k; what is larger than all of them is cut into
        equal pieces, what is smaller takes as long as the smallest.
        """
        grid = _Grid(self._rows("gemm", "gemm_perf", {"gemm_dtype": SIXTEEN_BITS}, ("m", "n", "k")))
        return {(n, k): grid.by_tokens(n, k) for n, k in sizes}

    def decode(self, shape: ModelShape) -> dict[int, Points]:
        """Attention of a layer for one new token a sequence: by sequences, then by the contexts added up."""
        rows = self._heads("generation_attention_perf", shape, ("batch_size", "step"))
        found: dict[int, Points] = {}
        for (n_seqs, before), ns in rows.items():
            found.setdefault(n_seqs, {})[n_seqs * (before + 1)] = ns
        return found

    def prefill(self, shape: ModelShape) -> dict[int, Points]:
        """Causal attention of a layer over whole prompts: by sequences, then by tokens of each."""
        found: dict[int, Points] = {}
        for (n_seqs, n_tokens), ns in self._heads("context_attention_perf", shape, ("batch_size", "isl")).items():
            found.setdefault(n_seqs, {})[n_tokens] = ns
        return found

    def experts(self, shape: ModelShape) -> Points:
        """The grouped GEMMs of a layer's experts on one GPU, tokens spread evenly: by tokens."""
        mixture = shape.mixture
        assert mixture is not None
        sizes = {"hidden_size": shape.hidden, "inter_size": shape.ffn, "topk": mixture.n_active}
        exact = {**sizes, "num_experts": mixture.n_experts, "moe_tp_size": 1, "moe_ep_size": 1}
        wanted = {"moe_dtype": SIXTEEN_BITS, "distribution": frozenset({"balanced"})}
        for rows in self._each("moe", "moe_perf", {**wanted, **{key: {value} for key, value in exact.items()}}):
            if found := {int(row["num_tokens"]): _ns(row) for row in rows}:
                return found
        told = ", ".join(f"{key} {value}" for key, value in exact.items())
        raise ValueError(f"aiconfigurator-core has no experts of {told} on {self.gpu}; set compute=roofline")

    def _heads(self, table: str, shape: ModelShape, keys: tuple[str, str]) -> dict[tuple[int, int], int]:
        """Rows of the model's heads; between measured numbers of heads latencies are linear."""
        wanted = {"head_dim": {shape.head_dim}, "window_size": {0}, "attn_dtype": SIXTEEN_BITS}
        wanted |= {"kv_cache_dtype": SIXTEEN_BITS}
        is_mha = shape.n_kv_heads == shape.n_heads
        for rows in self._each("attention", table, wanted):
            by_heads: dict[int, dict[tuple[int, int], int]] = {}
            for row in rows:
                heads, kv_heads = int(row["num_heads"]), int(row["num_key_value_heads"])
                if (kv_heads in (0, heads)) if is_mha else kv_heads == shape.n_kv_heads:
                    by_heads.setdefault(heads, {})[int(row[keys[0]]), int(row[keys[1]])] = _ns(row)
            if found := _between(by_heads, shape.n_heads):
                return found
        raise ValueError(
            f"aiconfigurator-core has no attention of {shape.n_heads} heads of {shape.head_dim}, {shape.n_kv_heads} "
            f"for KV, on {self.gpu}; set compute=roofline"
        )

    def _rows(
        self, kind: str, table: str, wanted: Mapping[str, Any], keys: tuple[str, str, str]
    ) -> dict[tuple[int, int, int], int]:
        for rows in self._each(kind, table, wanted):
            if found := {(int(row[keys[0]]), int(row[keys[1]]), int(row[keys[2]])): _ns(row) for row in rows}:
                return found
        raise ValueError(f"aiconfigurator-core has no {kind} in 16 bits on {self.gpu}; set compute=roofline")

    def _each(self, kind: str, table: str, wanted: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
        """The rows of each framework's newest table."""
        from pyarrow import parquet

        for framework in FRAMEWORKS:
            versions = sorted((self.folder / kind / framework).glob(f"*/{table}.parquet"), key=_version)
            if versions:
                has = set(parquet.read_schema(versions[-1]).names)
                kept = [(key, "in", list(values)) for key, values in wanted.items() if key in has]
                yield parquet.read_table(versions[-1], filters=kept).to_pylist()


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parent.name)]


def _ns(row: Mapping[str, Any]) -> int:
    return max(1, round(row["latency"] * NS_PER_MS))


def _between(by_heads: Mapping[int, Mapping[tuple[int, int], int]], n_heads: int) -> dict[tuple[int, int], int]:
    """Rows at a number of heads, linear between the two next to it; none if it is outside of what is there."""
    if n_heads in by_heads:
        return dict(by_heads[n_heads])
    known = sorted(by_heads)
    at = bisect_left(known, n_heads)
    if at in (0, len(known)):
        return {}
    fewer, more = known[at - 1], known[at]
    share = (n_heads - fewer) / (more - fewer)
    both = by_heads[fewer].keys() & by_heads[more].keys()
    return {key: round(by_heads[fewer][key] * (1 - share) + by_heads[more][key] * share) for key in both}


class _Grid:
    """GEMM latencies by tokens, outputs and inputs."""

    def __init__(self, rows: Mapping[tuple[int, int, int], int]) -> None:
        self._rows = rows
        self._tokens = sorted({tokens for tokens, _, _ in rows})
        self._n = sorted({n for _, n, _ in rows})
        self._k = sorted({k for _, _, k in rows})

    def by_tokens(self, n: int, k: int) -> Points:
        n_pieces, k_pieces = -(-n // self._n[-1]), -(-k // self._k[-1])
        around_n, around_k = _around(self._n, n / n_pieces), _around(self._k, k / k_pieces)
        found: Points = {}
        for tokens in self._tokens:
            corners = [
                (weight_n * weight_k, self._rows.get((tokens, at_n, at_k)))
                for at_n, weight_n in around_n
                for at_k, weight_k in around_k
            ]
            if all(ns is not None for _, ns in corners):
                one = exp(sum(weight * log(ns) for weight, ns in corners if ns is not None))
                found[tokens] = round(n_pieces * k_pieces * one)
        return found


def _around(known: list[int], value: float) -> list[tuple[int, float]]:
    """The measured sizes next to a value, and their weights on a logarithmic scale."""
    at = bisect_left(known, value)
    if at == 0:
        return [(known[0], 1.0)]
    if known[at] == value:
        return [(known[at], 1.0)]
    share = log(value / known[at - 1]) / log(known[at] / known[at - 1])
    return [(known[at - 1], 1 - share), (known[at], share)]
