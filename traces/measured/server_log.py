"""What a vLLM server did, request by request and second by second: a run as LLMServingSim's bench keeps it.

A folder has::

    meta.json            how the server was set (``server_settings``)
    requests.jsonl       request_id, input_toks, output_toks, arrival_time, queued_ts, scheduled_ts, first_token_ts, ...
    trace.jsonl(.gz)     optional: the same requests as they were sent, with token ids, which tell shared prefixes
    timeseries.csv       optional: t, running, waiting, kv_cache_pct
    layer_profile/       ``layer_profile``

Rules:

- **Arrival** is when the front end took the request. It is on the wall clock, all else on the engine's; the two are
  as far apart as the smallest gap from arrival to queue, for a request that finds the engine at rest is queued at once.
- A row of the series holds the state after the last step that ended before its ``t``, which counts from ``started_at``.

Source: github.com/casys-kaist/LLMServingSim, bench/core/{runner,recorder,stat_logger}.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from policies.types import NS_PER_S, Arrival, Request
from traces.formats import Entry, Pieces, read_entries
from traces.formats.records import Record, records, row_fault
from traces.formats.values import duration_ns, tokens
from traces.measured.server_settings import ServerSettings, read_settings

FAR_APART_NS = 10**5 * NS_PER_S
"""No run lasts a day; a machine's clock and the wall clock are further apart."""

MEND = "give a run as LLMServingSim's bench keeps it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request as it was served; times count from the first arrival."""

    arrival_ns: int
    n_prompt: int
    n_output: int
    first_token_ns: int
    last_token_ns: int
    prompt: Pieces | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The server at one moment, all engines together; ``kv_share`` of the KV cache is in use."""

    at_ns: int
    n_running: int
    n_waiting: int
    kv_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """A run to hold a simulation against."""

    folder: Path
    settings: ServerSettings
    requests: Sequence[Served]
    samples: Sequence[Sample]

    def arrivals(self) -> list[Arrival]:
        """Its requests in order of time; their numbers are their places in ``requests``.

        The client asked for exactly the tokens that came.
        """
        made = [
            Arrival(Request(number, 0, its.arrival_ns, its.n_prompt, its.n_output, its.prompt), its.n_output)
            for number, its in enumerate(self.requests)
        ]
        return sorted(made, key=lambda arrival: arrival.request.arrival_ns)


def read_server_run(folder: Path) -> ServerRun:
    """Read a run.

    Raises:
        ValueError: a file is missing or faulty, or they do not belong together.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; {MEND}")
    settings = read_settings(folder)
    logged = list(_logged(folder / "requests.jsonl"))
    if not logged:
        raise ValueError(f"{folder / 'requests.jsonl'} has no requests; {MEND}")
    sent = _sent(folder)
    if sent is not None:
        _check_same(folder, logged, sent)
    requests, to_engine_ns = _on_one_clock(folder, logged, sent)
    return ServerRun(
        folder=folder,
        settings=settings,
        requests=requests,
        samples=_samples(folder / "timeseries.csv", settings, to_engine_ns),
    )


@dataclass(frozen=True, slots=True)
class _Logged:
    n_prompt: int
    n_output: int
    arrival_ns: int | None
    queued_ns: int | None
    first_token_ns: int
    last_token_ns: int


def _logged(path: Path) -> Iterator[_Logged]:
    if not path.exists():
        raise ValueError(f"{path} is not there; {MEND}")
    for line, record in records(path, "jsonl"):
        try:
            yield _of_record(record)
        except ValueError as error:
            raise row_fault(path, "jsonl", line, str(error)) from None


def _of_record(record: Record) -> _Logged:
    def at(name: str) -> int:
        if record.get(name) is None:
            raise ValueError(f"{name} is missing: the request had no end")
        return duration_ns(record[name], "s", name)

    def perhaps(name: str) -> int | None:
        return None if record.get(name) is None else at(name)

    def count(name: str) -> int:
        n = tokens(record.get(name), name)
        if n < 1:
            raise ValueError(f"{name}={n} must be at least 1")
        return n

    first_ns, last_ns = at("first_token_ts"), at("last_token_ts")
    if last_ns < first_ns:
        raise ValueError("last_token_ts is before first_token_ts")
    return _Logged(
        count("input_toks"), count("output_toks"), perhaps("arrival_time"), perhaps("queued_ts"), first_ns, last_ns
    )


def _sent(folder: Path) -> list[Entry] | None:
    """The requests as they were sent, ``None`` if the trace is not there; sessions were not replayed."""
    for name in ("trace.jsonl.gz", "trace.jsonl"):
        if (folder / name).exists():
            return [entry for entry in read_entries(folder / name) if "nested" not in entry.odd]
    return None


def _check_same(folder: Path, logged: Sequence[_Logged], sent: Sequence[Entry]) -> None:
    if len(sent) < len(logged):
        raise ValueError(f"{folder}: {len(logged)} requests were served and the trace has {len(sent)}; {MEND}")
    for number, (its, entry) in enumerate(zip(logged, sent, strict=False)):
        if (its.n_prompt, its.n_output) != (entry.n_prompt, entry.n_output):
            raise ValueError(
                f"{folder}: request {number} has {its.n_prompt} and {its.n_output} tokens in requests.jsonl, "
                f"{entry.n_prompt} and {entry.n_output} in the trace; {MEND}"
            )


def _on_one_clock(
    folder: Path, logged: Sequence[_Logged], sent: Sequence[Entry] | None
) -> tuple[list[Served], int | None]:
    """Requests with times since the first arrival, and what the wall clock lacks to that (``None``: nobody knows)."""
    arrivals_ns = [its.arrival_ns for its in logged]
    is_wall = True
    if any(at is None for at in arrivals_ns):
        is_wall = False
        if sent is None or any(entry.time_ns is None for entry in sent):
            raise ValueError(f"{folder / 'requests.jsonl'}: arrival_time is missing, and no trace has it; {MEND}")
        arrivals_ns = [entry.time_ns for entry in sent[: len(logged)]]
    known_ns = [at for at in arrivals_ns if at is not None]
    gap_ns = _gap_ns(folder, logged, known_ns)
    first_ns = min(known_ns)
    made: list[Served] = []
    for number, (its, at_ns) in enumerate(zip(logged, known_ns, strict=True)):
        to_ns = -gap_ns - first_ns
        if its.first_token_ns + to_ns < at_ns - first_ns:
            raise ValueError(f"{folder / 'requests.jsonl'}: request {number} has a token before it arrives; {MEND}")
        made.append(
            Served(
                arrival_ns=at_ns - first_ns,
                n_prompt=its.n_prompt,
                n_output=its.n_output,
                first_token_ns=its.first_token_ns + to_ns,
                last_token_ns=its.last_token_ns + to_ns,
                prompt=None if sent is None else sent[number].prompt,
            )
        )
    return made, -first_ns if is_wall and gap_ns else None


def _gap_ns(folder: Path, logged: Sequence[_Logged], arrivals_ns: Sequence[int]) -> int:
    """What the engine's clock is ahead of that of the arrivals."""
    if all(abs(its.first_token_ns - at) < FAR_APART_NS for its, at in zip(logged, arrivals_ns, strict=True)):
        return 0
    queued_ns = [its.queued_ns for its in logged]
    gaps_ns = [queued - at for queued, at in zip(queued_ns, arrivals_ns, strict=True) if queued is not None]
    if not gaps_ns:
        raise ValueError(f"{folder / 'requests.jsonl'}: arrivals have another clock, and queued_ts is missing; {MEND}")
    return min(gaps_ns)


def _samples(path: Path, settings: ServerSettings, to_first_ns: int | None) -> list[Sample]:
    """The series; empty if there is none. Without a common clock it is taken to begin with the first arrival."""
    if not path.exists():
        return []
    begin_ns = 0
    if to_first_ns is not None and settings.started is not None:
        begin_ns = _wall_ns(settings.started, path.parent / "meta.json") + to_first_ns
    made: list[Sample] = []
    for line, row in records(path, "csv"):
        try:
            made.append(_sample(row, begin_ns))
        except (ValueError, KeyError) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise row_fault(path, "csv", line, what) from None
    return made


def _sample(row: Record, begin_ns: int) -> Sample:
    per_cent = duration_ns(row["kv_cache_pct"], "s", "kv_cache_pct") / NS_PER_S
    if per_cent > 100:
        raise ValueError(f"kv_cache_pct {per_cent:g} is above 100")
    return Sample(
        at_ns=begin_ns + duration_ns(row["t"], "s", "t"),
        n_running=tokens(row["running"], "running"),
        n_waiting=tokens(row["waiting"], "waiting"),
        kv_share=per_cent / 100,
    )


def _wall_ns(started: str, path: Path) -> int:
    try:
        moment = datetime.fromisoformat(started.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"{path}: started_at {started[:40]!r} is no date and time; {MEND}") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1000
