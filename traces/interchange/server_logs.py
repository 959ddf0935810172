"""What a real server did, request by request, as a run folder: the tables that are told of, ``requests`` and ``gaps``.

========================  =============================================================================
vLLM's bench serve        one JSON document of ``--save-result --save-detailed``: input_lens, ttfts, itls, ...
aiperf                    profile_export.jsonl, one request a line: metadata and metrics with their units
LLMServingSim's bench     requests.jsonl: input_toks, arrival_time, queued_ts, first_token_ts, last_token_ts
========================  =============================================================================

Rules: a failed or cancelled request counts as dropped. Where only a mean gap is known, there are no gaps, so every
figure over gaps is absent. Times are as the client or the server took them, and begin at the first arrival.

Source: vllm/benchmarks/serve.py; aiperf docs/tutorials/working-with-profile-exports.md; LLMServingSim bench/examples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from policies.journal import GapCause
from policies.serving.sequence import State
from policies.types import NS_PER_S
from traces.results.folder import SCHEMA_VERSION, ModelInfo, RunInfo, RunTables, read_run, write_json
from traces.results.metrics import Summary, spread, summarise
from traces.results.rows import ROW_TYPES, TableName, columns_of
from traces.results.tables import TableWriter

NS_PER: Mapping[str, int] = {"ns": 1, "us": 1000, "ms": 10**6, "s": NS_PER_S, "sec": NS_PER_S}
"""Units as aiperf writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request as a server's log tells it.

    Attributes:
        arrival_ns: by any clock that all requests share.
        ttft_ns, latency_ns: from arrival to the first and to the last token; ``None`` if it failed.
        gaps_ns: between its tokens, as they came; empty if the log has none.
    """

    arrival_ns: int
    n_prompt: int
    n_output: int
    ttft_ns: int | None
    latency_ns: int | None
    gaps_ns: tuple[int, ...] = ()

    @property
    def has_finished(self) -> bool:
        """Whether it was served to its end."""
        return self.ttft_ns is not None and self.latency_ns is not None and self.n_output > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """A log: of which program, of which model, and its requests."""

    program: str
    model: str
    rate_per_s: float | None
    requests: tuple[Served, ...]


def read_server_log(path: Path) -> ServerLog:
    """Read a log, whose format is found from its contents.

    Raises:
        ValueError: it cannot be read, is of no known format, or holds no request.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}; name the per-request log of a server") from error
    records = list(_records(path, text))
    first = records[0] if records else {}
    try:
        if "ttfts" in first:
            log = _of_bench_serve(first)
        elif "metadata" in first:
            log = _of_aiperf(records)
        elif "first_token_ts" in first:
            log = _of_servingsim(records)
        else:
            raise ValueError("of no known format: python -m sim compare --help lists them")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: a request lacks {error}, or has it in another form") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not log.requests:
        raise ValueError(f"{path}: the log holds no request")
    return log


def as_run(log: ServerLog, folder: Path, name: str) -> RunTables:
    """Write a log as a run folder, so that it is summed up by the same rules as any run.

    Args:
        folder: empty, or not there yet.
        name: of the system.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = RunInfo(
        system=name,
        mix=log.model,
        lengths=log.program,
        rate_per_s=log.rate_per_s,
        seed=0,
        models=(ModelInfo(name=log.model, block_bytes=0),),
        device=f"measured, log of {log.program}, which tells nothing of preemptions",
    )
    first_ns = min(served.arrival_ns for served in log.requests)
    rows = [_row(number, served, first_ns) for number, served in enumerate(log.requests)]
    gaps = [(0, GapCause.DECODE, gap_ns, 1) for served in log.requests for gap_ns in served.gaps_ns]
    _write_table(folder, "requests", rows)
    _write_table(folder, "gaps", gaps)
    header: dict[str, object] = {
        **{key: getattr(info, key) for key in ("system", "mix", "lengths", "rate_per_s", "seed", "device")},
        "schema_version": SCHEMA_VERSION,
        "models": [{"name": log.model, "block_bytes": 0}],
        "hbm_bytes": None,
        "config": {},
        "tables": ["requests", "gaps"],
        "commit": None,
        "versions": {},
        "started": None,
        "finished": None,
        "state": "complete",
        "reason": None,
    }
    write_json(folder / "run.json", header)
    run = read_run(folder)
    write_json(folder / "summary.json", asdict(_summary(run, has_gaps=bool(gaps))))
    return run


def _write_table(folder: Path, name: TableName, rows: Sequence[tuple[object, ...]]) -> None:
    row_type = ROW_TYPES[name]
    writer = TableWriter(folder, name, row_type, rows_per_part=max(1, len(rows)))
    writer.extend(list(zip(*rows, strict=True)) or [()] * len(columns_of(row_type)))
    writer.close()


def _summary(run: RunTables, *, has_gaps: bool) -> Summary:
    """The figures of the tables, without a largest gap if only mean gaps are known."""
    summary = summarise(run)
    if has_gaps:
        return summary
    unknown = replace(summary.total, max_gap=spread(np.zeros(0, np.int64)))
    return replace(summary, total=unknown, by_model=(unknown,))


def _row(number: int, served: Served, first_ns: int) -> tuple[object, ...]:
    """The columns of ``RequestRow``, in their order; what a log does not tell is absent, or none at all."""
    arrival_ns = served.arrival_ns - first_ns
    told: dict[str, object] = {
        "request_id": number,
        "model": 0,
        "arrival_ns": arrival_ns,
        "n_prompt_tokens": max(1, served.n_prompt),
        "n_output_tokens": served.n_output,
        "max_output_tokens": max(1, served.n_output),
        "outcome": State.FINISHED if served.has_finished else State.DROPPED,
    }
    if served.ttft_ns is not None and served.latency_ns is not None and served.has_finished:
        told |= {"first_token_ns": arrival_ns + served.ttft_ns, "finish_ns": arrival_ns + served.latency_ns}
        if served.n_output > 1:
            told["mean_gap_ns"] = (served.latency_ns - served.ttft_ns) // (served.n_output - 1)
            told["max_gap_ns"] = max(served.gaps_ns, default=None)
    columns = columns_of(ROW_TYPES["requests"])
    return tuple(told.get(column.name, None if column.nullable else 0) for column in columns)


def _records(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """One document, or one a line."""
    try:
        yield _object(json.loads(text))
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield _object(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number}: no JSON object ({error})") from error


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", value)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


def _of_bench_serve(document: Mapping[str, Any]) -> ServerLog:
    if "start_times" not in document:
        raise ValueError("has no start_times, so nothing says when requests came; a newer vLLM writes them")
    columns: Sequence[Sequence[Any]] = [
        document[key] for key in ("start_times", "input_lens", "output_lens", "ttfts", "itls")
    ]
    errors = document.get("errors") or [""] * len(columns[0])
    if len({len(column) for column in (*columns, errors)}) != 1:
        raise ValueError("start_times, input_lens, output_lens, ttfts, itls and errors are not equally long")
    rate = document.get("request_rate")
    requests = tuple(_bench_request(*row) for row in zip(*columns, errors, strict=True))
    return ServerLog(
        program="vllm bench serve",
        model=str(document.get("model_id", "unknown")),
        rate_per_s=float(rate) if isinstance(rate, int | float) else None,  # "inf": all at once
        requests=requests,
    )


def _bench_request(start: float, n_prompt: int, n_output: int, ttft: float, itl: Sequence[float], error: str) -> Served:
    has_failed = bool(error)
    gaps_ns = () if has_failed else tuple(map(_ns, itl))
    return Served(
        arrival_ns=_ns(start),
        n_prompt=n_prompt,
        n_output=n_output,
        ttft_ns=None if has_failed else _ns(ttft),
        latency_ns=None if has_failed else _ns(ttft) + sum(gaps_ns),
        gaps_ns=gaps_ns,
    )


def _of_aiperf(records: Sequence[Mapping[str, Any]]) -> ServerLog:
    profiled = [each for each in records if each["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    return ServerLog(program="aiperf", model="unknown", rate_per_s=None, requests=tuple(map(_aiperf_request, profiled)))


def _aiperf_request(record: Mapping[str, Any]) -> Served:
    arrival_ns, metrics = int(record["metadata"]["request_start_ns"]), record["metrics"]
    if record.get("error") is not None:
        failed = metrics.get("error_isl", {"value": 1})
        return Served(arrival_ns=arrival_ns, n_prompt=int(failed["value"]), n_output=0, ttft_ns=None, latency_ns=None)

    def duration_ns(name: str) -> int:
        return round(metrics[name]["value"] * NS_PER[metrics[name]["unit"]])

    chunks = metrics.get("inter_chunk_latency", {"value": [], "unit": "ms"})
    return Served(
        arrival_ns=arrival_ns,
        n_prompt=int(metrics["input_sequence_length"]["value"]),
        n_output=int(metrics["output_sequence_length"]["value"]),
        ttft_ns=duration_ns("time_to_first_token"),
        latency_ns=duration_ns("request_latency"),
        gaps_ns=tuple(round(chunk * NS_PER[chunks["unit"]]) for chunk in chunks["value"]),
    )


def _of_servingsim(records: Sequence[Mapping[str, Any]]) -> ServerLog:
    # Arrivals are on the wall clock, all else on the engine's: see traces/measured/server_log.py.
    apart_s = min(each["queued_ts"] - each["arrival_time"] for each in records)
    requests = tuple(_servingsim_request(each, each["arrival_time"] + apart_s) for each in records)
    return ServerLog(program="LLMServingSim bench", model="unknown", rate_per_s=None, requests=requests)


def _servingsim_request(record: Mapping[str, Any], arrival_s: float) -> Served:
    return Served(
        arrival_ns=_ns(arrival_s),
        n_prompt=int(record["input_toks"]),
        n_output=int(record["output_toks"]),
        ttft_ns=_ns(record["first_token_ts"] - arrival_s),
        latency_ns=_ns(record["last_token_ts"] - arrival_s),
    )
