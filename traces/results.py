"""Keeps what a run tells as a folder of tables, written while it runs (see ``traces/folder.py``)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from policies.backend import Batch, StepReport
from policies.decision import Decision
from policies.journal import GapCause, HbmUse
from policies.serving.scheduler import Scheduler, Step
from policies.serving.sequence import Sequence
from policies.view import MemoryView
from traces.folder import SCHEMA_VERSION, RunInfo, State, write_json
from traces.gaps import histogram
from traces.provenance import commit, versions
from traces.rows import ROW_TYPES, DecisionRow, GapRow, MemoryRow, RequestRow, StepRow, TableName
from traces.tables import TableWriter

ROWS_PER_PART = 2**15
"""Bounds what waits in memory to some MiB a table."""

Row = TypeVar("Row")


class RunWriter:
    """Keeps what a run tells (``policies.journal.Journal``) in a folder.

    Used as a context manager: leaving it merges the tables and marks the run complete,
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
        self._tables = tables
        self._rows_per_part = rows_per_part
        self._header = {
            "schema_version": SCHEMA_VERSION,
            **asdict(info),
            "tables": [name for name in ROW_TYPES if name in tables],
            "commit": commit(),
            "versions": versions(),
            "started": _now(),
        }
        self._open_folder()
        self._requests = TableWriter(folder, "requests", RequestRow, rows_per_part=rows_per_part)
        self._gaps = TableWriter(folder, "gaps", GapRow, rows_per_part=rows_per_part, combine=histogram)
        self._steps = self._optional("steps", StepRow)
        self._decisions = self._optional("decisions", DecisionRow)
        self._memory = self._optional("memory", MemoryRow)
        self._last_use: dict[int, HbmUse] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for table in (self._requests, self._gaps, self._steps, self._decisions, self._memory):
            if table is not None:
                table.close()
        if error is None:
            self._write_header("complete")
        else:
            self._write_header("incomplete", f"{type(error).__name__}: {error}".removesuffix(": "))

    def composed(self, lane: int, now_ns: int, step: Step, scheduler: Scheduler) -> None:
        """Keep nothing: a step is a row once it has run."""

    def ran(self, lane: int, batch: Batch, report: StepReport) -> None:
        """Keep one row a step."""
        if self._steps is None:
            return
        n_steps = len(report.ends_ns)
        first_stall_ns = report.stall_ns[0] + report.swap_ns + report.remap_ns
        self._steps.extend(
            {
                "model": [lane] * n_steps,
                "start_ns": [report.start_ns, *report.ends_ns[:-1]],
                "end_ns": report.ends_ns,
                "n_prefill_tokens": [batch.work.n_prefill_tokens] * n_steps,
                "n_decode_seqs": [batch.work.n_decode_seqs] * n_steps,
                "stall_ns": [first_stall_ns, *report.stall_ns[1:]],
            }
        )

    def gaps(self, model: int, cause: GapCause, gaps_ns: Seq[int], n_requests: int) -> None:
        """Count each gap ``n_requests`` times."""
        n = len(gaps_ns)
        self._gaps.extend(
            {"model": [model] * n, "cause": [_label(cause)] * n, "gap_ns": gaps_ns, "n": [n_requests] * n}
        )

    def retired(self, lane: int, now_ns: int, seqs: Seq[Sequence], scheduler: Scheduler) -> None:  # noqa: ARG002
        """Keep one row a request."""
        for seq in seqs:
            self._requests.append(_request_row(lane, seq))

    def outlived(self, lane: int, seqs: Iterable[Sequence]) -> None:
        """Keep one row for each request that is still there when the run ends."""
        for seq in seqs:
            self._requests.append(_request_row(lane, seq))

    def decided(self, now_ns: int, view: MemoryView, decision: Decision, *, changed: bool, refused: bool) -> None:
        """Keep one row a question, with view and targets if it changed anything."""
        if self._decisions is None:
            return
        row = DecisionRow(
            at_ns=now_ns,
            step=view.step,
            ask=_label(view.ask),
            asker=view.asker,
            reason=_label(decision.reason),
            n_short_blocks=view.n_short_blocks,
            changed=changed,
            refused=refused,
            view=_json(view) if changed else None,
            targets=_json(decision.targets) if changed else None,
        )
        self._decisions.append(row)

    def hbm(self, now_ns: int, uses: Seq[HbmUse]) -> None:
        """Keep a row for each model of which something changed."""
        if self._memory is None:
            return
        for use in uses:
            if self._last_use.get(use.model) == use:
                continue
            self._last_use[use.model] = use
            self._memory.append(_memory_row(now_ns, use))

    def _optional(self, name: TableName, row_type: type[Row]) -> TableWriter[Row] | None:
        if name not in self._tables:
            return None
        return TableWriter(self.folder, name, row_type, rows_per_part=self._rows_per_part)

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


def _request_row(model: int, seq: Sequence) -> RequestRow:
    mean_gap_ns = None
    if seq.n_output > 1 and seq.first_token_ns is not None and seq.last_token_ns is not None:
        mean_gap_ns = (seq.last_token_ns - seq.first_token_ns) // (seq.n_output - 1)
    return RequestRow(
        request_id=seq.request.request_id,
        model=model,
        arrival_ns=seq.request.arrival_ns,
        n_prompt_tokens=seq.request.n_prompt_tokens,
        n_output_tokens=seq.n_output,
        max_output_tokens=seq.request.max_output_tokens,
        first_token_ns=seq.first_token_ns,
        finish_ns=seq.finish_ns,
        outcome=_label(seq.state),
        n_preemptions=seq.n_preemptions,
        n_recomputed_tokens=seq.n_recomputed,
        n_hit_tokens=seq.n_hit_tokens,
        mean_gap_ns=mean_gap_ns,
        max_gap_ns=None if mean_gap_ns is None else seq.max_gap_ns,
    )


def _memory_row(at_ns: int, use: HbmUse) -> MemoryRow:
    return MemoryRow(
        at_ns=at_ns,
        model=use.model,
        resident_bytes=use.resident_bytes,
        slot_bytes=use.slot_bytes,
        loading_bytes=use.loading_bytes,
        lent_bytes=use.lent_bytes,
        n_base_blocks=use.n_base_blocks,
        n_base_used=use.n_base_used,
        n_lent_blocks=use.n_lent_blocks,
        n_lent_used=use.n_lent_used,
    )


def _label(member: Enum) -> str:
    return member.name.lower()


def _json(value: object) -> str:
    return json.dumps(value, default=_as_json, separators=(",", ":"))


def _as_json(value: object) -> object:
    """What JSON does not know: a dataclass as its fields, an enum as its label, a set in order."""
    if is_dataclass(value):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Enum):
        return _label(value)
    if isinstance(value, set | frozenset):
        return sorted(cast("frozenset[int]", value))
    raise TypeError(f"{type(value).__name__} in a decision cannot be kept; use dataclasses, enums, tuples and numbers")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
