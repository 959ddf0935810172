"""Keeps what a run tells as a folder of tables, written while it runs (see ``traces/results/folder.py``).

A run tells some ten facts a request, so a fact costs a few appends to flat lists here; rows
are made of thousands of them at a time, in another thread (see ``traces/results/feed.py``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from policies.backend import Batch, StepReport
from policies.costs import Costs
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView
from traces.results.feed import Feed, Worker
from traces.results.folder import SCHEMA_VERSION, RunInfo, State, write_json
from traces.results.gaps import combined, counted
from traces.results.provenance import commit, is_compiled, versions
from traces.results.rows import ROW_TYPES, TableName, label
from traces.results.steps import each_step
from traces.results.tables import TableWriter
from traces.results.told import GapRuns, StepRuns

if TYPE_CHECKING:
    from traces.results.arrays import Values

    Rows = list[tuple[Any, ...]]

ROWS_PER_PART = 2**17
"""What a run that dies loses at most of a table; also the rows of a row group."""

NS_PER_US = 1000

MOST_NUMBERS, MOST_ROWS = 2**17, 2**14
"""Steps or gaps in flat lists, and rows of other tables, that wait as Python objects: some MiB."""

NEVER_SCHEDULED = None, 0

_use_facts = attrgetter(*(item.name for item in fields(HbmUse)))


class RunWriter:
    """Keeps what a run tells (``policies.journal.Journal``) in a folder.

    Used as a context manager: leaving it ends the tables and marks the run complete,
    leaving it by an exception marks it incomplete with the reason and keeps what there is.

    Args:
        folder: of this run alone; it is made if it does not exist.
        info: what runs.
        tables: the ones to keep; requests and gaps always.
        rows_per_part: rows after which a part file is closed.

    Raises:
        ValueError: the folder cannot be written or holds a run already, or a table that must be kept is missing.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        *,
        tables: Collection[TableName] = tuple(ROW_TYPES),
        rows_per_part: int = ROWS_PER_PART,
    ) -> None:
        if not {"requests", "gaps"} <= set(tables) <= set(ROW_TYPES):
            raise ValueError(
                f"results: tables={sorted(tables)} must be of {list(ROW_TYPES)} and keep requests and gaps"
            )
        self.folder = folder
        self._rows_per_part = rows_per_part
        self._most_numbers, self._most_rows = min(MOST_NUMBERS, rows_per_part), min(MOST_ROWS, rows_per_part)
        self._header = {
            "schema_version": SCHEMA_VERSION,
            **asdict(info),
            "tables": [name for name in ROW_TYPES if name in tables],
            "commit": commit(),
            "versions": versions(),
            "compiled": is_compiled(),
            "started": _now(),
        }
        self._open_folder()
        self._worker = Worker()
        self._requests = Feed(self._table("requests"), self._worker, _no_rows, _request_columns)
        self._gaps = Feed(self._table("gaps"), self._worker, GapRuns, counted)
        self._steps = Feed(self._table("steps"), self._worker, StepRuns, each_step) if "steps" in tables else None
        self._decisions = self._feed_of_rows("decisions") if "decisions" in tables else None
        self._memory = self._feed_of_rows("memory") if "memory" in tables else None
        self._last_use: dict[int, tuple[int, ...]] = {}
        self._scheduled: dict[Sequence, tuple[int, int]] = {}  # when first, and what it found in the cache

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for feed in (self._requests, self._gaps, self._steps, self._decisions, self._memory):
            if feed is not None:
                feed.close()
        self._worker.stop()
        if error is None:
            self._write_header("complete")
        else:
            self._write_header("incomplete", f"{type(error).__name__}: {error}".removesuffix(": "))

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Note who is scheduled for the first time; a step is a row once it has run."""
        for prefill in step.prefills:
            if prefill.seq not in self._scheduled:
                self._scheduled[prefill.seq] = now_ns, prefill.n_cached

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Keep one row a step."""
        if self._steps is None:
            return
        runs, work, ends_ns, stalls_ns = self._steps.told, batch.work, report.ends_ns, report.stall_ns
        n_stalls = len(stalls_ns) if any(stalls_ns) else 0
        if n_stalls:
            runs.stalls_ns.extend(stalls_ns)
        runs.ends_ns.extend(ends_ns)
        rests_ns = report.rest_ns
        n_rests = 0 if rests_ns.count(rests_ns[0]) == len(rests_ns) else len(rests_ns)
        if n_rests:
            runs.rests_ns.extend(rests_ns)
        n_prefill_tokens, n_decode_seqs = work.n_prefill_tokens, work.n_decode_seqs
        waits_ns = report.swap_ns + report.remap_ns
        runs.facts.extend((lane, n_prefill_tokens, n_decode_seqs, report.start_ns, len(ends_ns), waits_ns, n_stalls))
        runs.facts.extend((rests_ns[0], n_rests))
        if len(runs.ends_ns) >= self._most_numbers:
            self._steps.hand_over()

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Count each gap ``n_requests`` times."""
        runs = self._gaps.told
        runs.causes.append(cause)
        runs.facts.extend((model, len(gaps_ns), n_requests))
        runs.gaps_ns.extend(gaps_ns)
        if len(runs.gaps_ns) >= self._most_numbers:
            self._gaps.hand_over()

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:  # noqa: ARG002
        """Keep one row a request."""
        rows = self._requests.told
        for seq in seqs:
            rows.append((lane, *self._scheduled.pop(seq, NEVER_SCHEDULED), *_request_facts(seq)))
        if len(rows) >= self._most_rows:
            self._requests.hand_over()

    def outlived(self, lane: int, seqs: Iterable[Sequence]) -> None:
        """Keep one row for each request that is still there when the run ends."""
        self._requests.told.extend(
            (lane, *self._scheduled.pop(seq, NEVER_SCHEDULED), *_request_facts(seq)) for seq in seqs
        )

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Keep one row a question, with view and targets if it changed anything."""
        if self._decisions is None:
            return
        seen, wanted = (_json(view), _json(decision.targets)) if changed else (None, None)
        asked = (now_ns, view.step, view.ask, view.asker, decision.reason, view.n_short_blocks)
        self._add(self._decisions, (*asked, changed, refused, *_prices_ns(decision.costs), seen, wanted))

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Keep a row for each model of which something changed."""
        if self._memory is None:
            return
        for use in uses:
            facts = _use_facts(use)
            if self._last_use.get(use.model) != facts:
                self._last_use[use.model] = facts
                self._add(self._memory, (now_ns, *facts))

    def catch_up(self) -> None:
        """Wait until all that makes whole parts is in its files."""
        self._worker.catch_up()

    def _add(self, feed: Feed[Rows], row: tuple[Any, ...]) -> None:
        feed.told.append(row)
        if len(feed.told) >= self._most_rows:
            feed.hand_over()

    def _table(self, name: TableName) -> TableWriter:
        combine = combined if name == "gaps" else None
        return TableWriter(self.folder, name, ROW_TYPES[name], rows_per_part=self._rows_per_part, combine=combine)

    def _feed_of_rows(self, name: TableName) -> Feed[Rows]:
        return Feed(self._table(name), self._worker, _no_rows, _columns)

    def _open_folder(self) -> None:
        if (self.folder / "run.json").exists():
            raise ValueError(f"results folder {self.folder} holds a run already; choose another or remove it")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_header("running")
        except OSError as error:
            raise ValueError(
                f"results folder {self.folder} cannot be written ({error.strerror}); choose one that can"
            ) from error

    def _write_header(self, state: State, reason: str | None = None) -> None:
        finished = None if state == "running" else _now()
        write_json(self.folder / "run.json", {**self._header, "finished": finished, "state": state, "reason": reason})


def _prices_ns(costs: Costs | None) -> tuple[int | None, ...]:
    """What evicting, offloading, both and preempting would have cost."""
    if costs is None:
        return None, None, None, None
    prices = costs.evict_us, costs.offload_us, costs.both_us, costs.preempt_us
    return tuple(None if price is None else round(price * NS_PER_US) for price in prices)


def _request_facts(seq: Sequence) -> tuple[Any, ...]:
    """What ``_request_columns`` makes a row of."""
    request = seq.request
    return (
        request.request_id,
        request.arrival_ns,
        request.n_prompt_tokens,
        seq.n_output,
        request.max_output_tokens,
        seq.first_token_ns,
        seq.last_token_ns,
        seq.finish_ns,
        seq.state,
        seq.n_preemptions,
        seq.n_recomputed,
        seq.n_hit_tokens,
        seq.max_gap_ns,
    )


def _no_rows() -> Rows:
    return []


def _columns(rows: Rows) -> list[Values]:
    return list(zip(*rows, strict=True))


def _request_columns(rows: Rows) -> list[Values]:
    """Columns of ``RequestRow`` from the model and the facts of each sequence."""
    (
        model,
        scheduled,
        first_hits,
        number,
        arrival,
        n_prompt,
        n_output,
        max_output,
        first,
        last,
        finish,
        state,
        *counts,
        largest,
    ) = zip(*rows, strict=True)
    spans = zip(n_output, first, last, strict=True)
    mean = [None if n < 2 or begun is None else (ended - begun) // (n - 1) for n, begun, ended in spans]
    max_gap = [None if gap is None else longest for gap, longest in zip(mean, largest, strict=True)]
    return [
        number, model, arrival, n_prompt, n_output, max_output, first, finish, state, *counts, scheduled, first_hits,
        mean, max_gap,
    ]  # fmt: skip


def _json(value: object) -> str:
    return json.dumps(value, default=_as_json, separators=(",", ":"))


def _as_json(value: object) -> object:
    """What JSON does not know: a dataclass as its fields, an enum as its label, a set in order."""
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Enum):
        return label(value)
    if isinstance(value, set | frozenset):
        return sorted(cast("frozenset[int]", value))
    raise TypeError(f"{type(value).__name__} in a decision cannot be kept; use dataclasses, enums, tuples and numbers")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
