"""What each kind of layer takes on one GPU under vLLM: the layer profiles of LLMServingSim, as they are published.

A folder has ``meta.yaml`` and for every degree of tensor parallelism ``tp<N>/`` with::

    dense.csv            layer,tokens,time_us
    per_sequence.csv     layer,sequences,time_us
    attention.csv        prefill_chunk,kv_prefill,n_decode,kv_decode,time_us
    moe.csv              tokens,activated_experts,time_us  (models with experts; perhaps ep)
    skew.csv             n,pc,t_mean_us,t_max_us,t_skew_us  (optional: contexts of different lengths)

Rules:

- Columns are found by name, wherever they stand; others are left out. Later profiles say ``prefill_key``, the mean
  keys of a prompt token, where earlier ones say ``kv_prefill``; they differ by half of ``prefill_chunk``.
- Attention of another ``decode_q_len`` than 1 (speculative decoding) is left out. Several kernels (``layer``) at the
  same place are run one after another.
- A place that was measured twice counts as measured last (a profile that was resumed appends).

Source: github.com/casys-kaist/LLMServingSim, docs/docs/profiler/output-bundle.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import yaml

from traces.formats.records import Record, records, row_fault
from traces.formats.values import duration_ns, tokens

Row = TypeVar("Row")

MEND = "give a layer profile as LLMServingSim publishes it"


class AttentionTiming(NamedTuple):
    """Attention of one layer.

    Attributes:
        n_new: prompt tokens of the step, of one prompt.
        key_halves: twice the tokens before them plus ``n_new``: twice the keys that one of them has in the mean.
        n_decodes: sequences that decode.
        context_tokens: of each of them.
    """

    n_new: int
    key_halves: int
    n_decodes: int
    context_tokens: int
    ns: int


class ExpertTiming(NamedTuple):
    """The mixture of experts of one layer: by tokens, and how many different experts they are routed to."""

    n_ranks: int
    n_tokens: int
    n_experts: int
    ns: int


class UnevenTiming(NamedTuple):
    """Attention of decodes with contexts of different lengths, beside the same with all as long as their mean, and
    with all as long as the longest."""

    n_decodes: int
    n_new: int
    mean_ns: int
    longest_ns: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """All durations of one model on one GPU, at one degree of tensor parallelism.

    Attributes:
        folder: that it was read from.
        about: where they come from: gpu, model, vllm_version and the like, as far as the profile says so.
        per_token: (tokens, ns) of each layer without attention, by its name.
        per_sequence: (sequences, ns) of what is outside the layers, by its name.
        experts, uneven: empty where they were not measured.
    """

    folder: Path
    about: Mapping[str, object]
    n_ranks: int
    per_token: Mapping[str, Sequence[tuple[int, int]]]
    per_sequence: Mapping[str, Sequence[tuple[int, int]]]
    attention: Sequence[AttentionTiming]
    experts: Sequence[ExpertTiming]
    uneven: Sequence[UnevenTiming]


def is_layer_profile(folder: Path) -> bool:
    """Whether a folder looks like one."""
    return any(folder.glob("tp*/dense.csv"))


def read_layer_profile(folder: Path, n_ranks: int) -> LayerProfile:
    """Read a profile.

    Raises:
        ValueError: a file is missing or faulty, or this degree of tensor parallelism was not measured.
    """
    of_ranks = folder / f"tp{n_ranks}"
    if (of_ranks / "linear_attention.csv").exists():
        raise ValueError(f"{of_ranks} has linear_attention.csv: a hybrid model's profile is not read; give another")
    if not of_ranks.is_dir():
        there = ", ".join(sorted(path.name for path in folder.glob("tp*"))) or "none"
        raise ValueError(f"{of_ranks} is not there (measured: {there}); profile tensor_parallel_size={n_ranks}")
    return LayerProfile(
        folder=of_ranks,
        about=_about(folder / "meta.yaml"),
        n_ranks=n_ranks,
        per_token=_by_layer(of_ranks / "dense.csv", "tokens"),
        per_sequence=_by_layer(of_ranks / "per_sequence.csv", "sequences"),
        attention=_attention(of_ranks / "attention.csv"),
        experts=_experts(of_ranks / "moe.csv"),
        uneven=_uneven(of_ranks / "skew.csv"),
    )


def _about(path: Path) -> Mapping[str, object]:
    if not path.exists():
        return {}
    try:
        about = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}; {MEND}") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path} says nothing by name; {MEND}")
    return cast("Mapping[str, object]", about)


def _by_layer(path: Path, size: str) -> dict[str, list[tuple[int, int]]]:
    def read(row: Record) -> tuple[str, int, int]:
        return str(row["layer"]), _positive(row, size), _ns(row, "time_us")

    layers: dict[str, dict[int, int]] = {}
    for layer, at, ns in _rows(path, ("layer", size, "time_us"), read):
        layers.setdefault(layer, {})[at] = ns
    return {layer: sorted(points.items()) for layer, points in layers.items()}


def _attention(path: Path) -> list[AttentionTiming]:
    def read(row: Record) -> tuple[str, AttentionTiming] | None:
        if "decode_q_len" in row and tokens(row["decode_q_len"], "decode_q_len") > 1:
            return None
        n_new, n_decodes = tokens(row["prefill_chunk"], "prefill_chunk"), tokens(row["n_decode"], "n_decode")
        context_tokens = tokens(row["kv_decode"], "kv_decode")
        if not n_new and not n_decodes:
            raise ValueError("neither prefill_chunk nor n_decode")
        if bool(n_decodes) != bool(context_tokens):
            raise ValueError(f"n_decode={n_decodes} with kv_decode={context_tokens}")
        ns = _ns(row, "time_us")
        return str(row.get("layer", "")), AttentionTiming(n_new, _keys(row, n_new), n_decodes, context_tokens, ns)

    measured = {
        (layer, timing[:-1]): timing.ns
        for layer, timing in filter(None, _rows(path, ("prefill_chunk", "n_decode", "kv_decode", "time_us"), read))
    }
    added: dict[tuple[int, ...], int] = {}
    for (_, place), ns in measured.items():
        added[place] = added.get(place, 0) + ns
    if not any(n_decodes and not n_new for n_new, _, n_decodes, _ in added):
        raise ValueError(f"{path} has no decodes alone; {MEND}")
    return [AttentionTiming._make((*place, ns)) for place, ns in sorted(added.items())]


def _keys(row: Record, n_new: int) -> int:
    if not n_new:
        return 0
    if "kv_prefill" in row:
        return 2 * tokens(row["kv_prefill"], "kv_prefill") + n_new
    if "prefill_key" in row:
        return max(n_new, 2 * duration_ns(row["prefill_key"], "ns", "prefill_key"))
    raise ValueError("neither kv_prefill nor prefill_key")


def _experts(path: Path) -> list[ExpertTiming]:
    def read(row: Record) -> ExpertTiming:
        n_ranks = tokens(row["ep"], "ep") if "ep" in row else 1
        n_experts = _positive(row, "activated_experts")
        return ExpertTiming(n_ranks, _positive(row, "tokens"), n_experts, _ns(row, "time_us"))

    if not path.exists():
        return []
    rows = _rows(path, ("tokens", "activated_experts", "time_us"), read)
    last = {timing[:-1]: timing for timing in rows}
    return sorted(last.values())


def _uneven(path: Path) -> list[UnevenTiming]:
    """The rows of ``skew.csv``; none where it is absent or of the later form, which keeps whole lists of requests."""

    def read(row: Record) -> UnevenTiming:
        mean_ns, longest_ns, ns = (_ns(row, column) for column in ("t_mean_us", "t_max_us", "t_skew_us"))
        return UnevenTiming(_positive(row, "n"), tokens(row["pc"], "pc"), mean_ns, longest_ns, ns)

    columns = ("n", "pc", "t_mean_us", "t_max_us", "t_skew_us")
    if not path.exists() or not _has(path, columns):
        return []
    return list(_rows(path, columns, read))


def _has(path: Path, columns: Sequence[str]) -> bool:
    return all(set(columns) <= row.keys() for _, row in _first(path))


def _first(path: Path) -> Iterator[tuple[int, Record]]:
    for each in records(path, "csv"):
        yield each
        return


def _rows(path: Path, columns: Sequence[str], read: Callable[[Record], Row]) -> Iterator[Row]:
    """Read a CSV row by row; at least one.

    Raises:
        ValueError: the file, a column or a row is missing or faulty.
    """
    n_rows = 0
    for number, row in records(path, "csv"):
        if lacking := [column for column in columns if column not in row]:
            raise ValueError(f"{path} has no column {', '.join(lacking)}; {MEND}")
        try:
            yield read(row)
        except ValueError as error:
            raise row_fault(path, "csv", number, str(error)) from None
        n_rows += 1
    if not n_rows:
        raise ValueError(f"{path} has no rows; {MEND}")


def _positive(row: Record, column: str) -> int:
    n = tokens(row[column], column)
    if n < 1:
        raise ValueError(f"{column}={n} must be at least 1")
    return n


def _ns(row: Record, column: str) -> int:
    return duration_ns(row[column], "us", column)
