"""What happened in a window of a run, as events.

::

    decisions      what was changed, with arrows to the first fetch of each layer that it moved; what was asked besides
    MODEL          prefill, decode and stall; what each slot held; running sequences, KV blocks
    link           host to device, device to host; bytes so far
    HBM by owner   bytes of each model by use

A step's stall is drawn at the end of the step: how it lies between the layers is not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.decision import Reason
from policies.types import GIB, NS_PER_S
from policies.view import Ask
from traces.plots.hbm import OWNERS
from traces.results.changes import Change, changes_of, in_words, what, why
from traces.results.copies import CopyMade, copies_of
from traces.results.folder import RunTables
from traces.timeline.events import Event, Lane, counter, flow, instant, process, slice_of, thread

if TYPE_CHECKING:
    from traces.results.rows import TableName

LONG_S = 10.0
"""Ours: length of a window that nobody named."""

BEFORE_S = 0.5
"""Ours: so much of it lies before the first change."""

CHANGES, ANSWERS = Lane(1, 1), Lane(1, 2)
TO_DEVICE, TO_HOST = Lane(2, 1), Lane(2, 2)
HBM = 3
FIRST_MODEL = 4
PREFILL, DECODE, STALL, FIRST_SLOT = 1, 2, 3, 10
"""Numbers of lanes; they only say in which order lanes are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of a run.

    Raises:
        ValueError: it ends before it begins, or begins before the run.
    """

    from_ns: int
    until_ns: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_ns < self.until_ns:
            raise ValueError(
                f"window {self.from_ns / NS_PER_S:g},{self.until_ns / NS_PER_S:g} must be FROM,UNTIL in seconds with "
                "0 <= FROM < UNTIL"
            )

    @classmethod
    def seconds(cls, span: Sequence[float]) -> Window:
        """Take a window in seconds."""
        if len(span) != 2:
            raise ValueError(f"window {','.join(map(str, span))} must be FROM,UNTIL in seconds")
        return cls(from_ns=round(span[0] * NS_PER_S), until_ns=round(span[1] * NS_PER_S))


def default_window(run: RunTables) -> Window:
    """The window for which the run kept its copies; else around the first change; else from the first step on."""
    kept: Any = run.info.config.get("timeline", {})
    if span := kept.get("window"):
        return Window.seconds(span)
    first = next(changes_of(run), None) if "decisions" in run.kept else None
    if first is not None:
        start_ns = max(0, first.at_ns - round(BEFORE_S * NS_PER_S))
    else:
        starts = run.columns("steps", ("start_ns",))["start_ns"] if "steps" in run.kept else np.zeros(0, np.int64)
        start_ns = int(starts[0]) if len(starts) else 0
    return Window(from_ns=start_ns, until_ns=start_ns + round(LONG_S * NS_PER_S))


def events(run: RunTables, window: Window) -> list[Event]:
    """All that happened in the window, in order of time, behind the names of the lanes."""
    models = [model.name for model in run.info.models]
    copies = [copy for copy in copies_of(run.folder) if _overlaps(window, copy.start_ns, copy.end_ns)]
    changes = [*_changes(run, window)]
    timed = [
        *_decisions(run, window, changes, models),
        *_flows(changes, copies),
        *_steps(run, window),
        *_copies(copies, models),
        *_slots(copies, changes, window),
        *_memory(run, window, models),
    ]
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return [*_names(models, copies), *timed]


def _model(index: int, tid: int) -> Lane:
    return Lane(FIRST_MODEL + index, tid)


def _names(models: Sequence[str], copies: Iterable[CopyMade]) -> Iterator[Event]:
    yield from process(CHANGES.pid, "decisions")
    yield from thread(CHANGES, "changes")
    yield from thread(ANSWERS, "answers without a change")
    yield from process(TO_DEVICE.pid, "link")
    yield from thread(TO_DEVICE, "host to device")
    yield from thread(TO_HOST, "device to host")
    yield from process(HBM, "HBM by owner")
    for index, name in enumerate(models):
        yield from process(FIRST_MODEL + index, name)
        for tid, lane in ((PREFILL, "prefill"), (DECODE, "decode"), (STALL, "stall")):
            yield from thread(_model(index, tid), lane)
    for model, home in sorted({(copy.model, copy.home) for copy in copies if copy.kind == "fetch"}):
        yield from thread(_model(model, FIRST_SLOT + home), f"home {home} holds")


def _overlaps(window: Window, start_ns: int, end_ns: int) -> bool:
    return start_ns <= window.until_ns and end_ns >= window.from_ns


def _rows(run: RunTables, table: TableName, only: Sequence[str], window: Window, end: str) -> Iterator[dict[str, Any]]:
    """Rows of a table whose span, from the first of the columns to ``end``, overlaps the window."""
    if table not in run.kept:
        return
    for piece in run.pieces(table, only):
        inside = (piece[only[0]] <= window.until_ns) & (piece[end] >= window.from_ns)
        chosen = [piece[name][inside].tolist() for name in only]
        for values in zip(*chosen, strict=True):
            yield dict(zip(only, values, strict=True))


def _changes(run: RunTables, window: Window) -> Iterator[Change]:
    if "decisions" in run.kept:
        yield from (change for change in changes_of(run) if window.from_ns <= change.at_ns <= window.until_ns)


def _decisions(run: RunTables, window: Window, changes: Iterable[Change], models: Sequence[str]) -> Iterator[Event]:
    for change in changes:
        told = what(change, models, None)
        args = {
            "why": why(change, models),
            "step": change.step,
            "short blocks": change.n_short_blocks,
            "lent homes": [home for home, _ in change.lent],
            "returned homes": [home for home, _ in change.returned],
            "cycling layers": change.n_cycling,
            "slots": change.n_slots,
        }
        yield instant(CHANGES, told, change.at_ns, args)
        yield slice_of(CHANGES, told, change.at_ns, change.at_ns + 1, args)  # arrows begin at slices
    columns = ("at_ns", "step", "ask", "asker", "reason", "n_short_blocks", "changed", "refused")
    for row in _rows(run, "decisions", columns, window, "at_ns"):
        if not row["changed"] and not row["refused"]:
            args = {
                "asked because": in_words(row["ask"], Ask),
                "model": models[row["asker"]],
                "step": row["step"],
                "short blocks": row["n_short_blocks"],
            }
            yield instant(ANSWERS, in_words(row["reason"], Reason), row["at_ns"], args)


def _flows(changes: Sequence[Change], copies: Sequence[CopyMade]) -> Iterator[Event]:
    """Arrows from a change to the first fetch of each layer that it moved, if that comes before the next change."""
    number = 0
    for index, change in enumerate(changes):
        later = (other.at_ns for other in changes[index + 1 :] if other.lender == change.lender)
        until_ns, waiting = next(later, None), {*change.moved}
        for copy in copies:
            is_own = copy.kind == "fetch" and copy.model == change.lender and copy.layer in waiting
            if is_own and copy.requested_ns >= change.at_ns and (until_ns is None or copy.requested_ns < until_ns):
                waiting.remove(copy.layer)
                number += 1
                yield from flow(number, CHANGES, change.at_ns, TO_DEVICE, copy.start_ns)


def _steps(run: RunTables, window: Window) -> Iterator[Event]:
    columns = ("start_ns", "end_ns", "model", "n_prefill_tokens", "n_decode_seqs", "stall_ns")
    for row in _rows(run, "steps", columns, window, "end_ns"):
        model, n_prompt, n_decodes = row["model"], row["n_prefill_tokens"], row["n_decode_seqs"]
        start_ns, end_ns, stall_ns = row["start_ns"], row["end_ns"], row["stall_ns"]
        args = {"prefill tokens": n_prompt, "sequences that decode": n_decodes, "stall ms": stall_ns / 10**6}
        name, lane = (f"prefill {n_prompt}", PREFILL) if n_prompt else (f"decode {n_decodes}", DECODE)
        yield slice_of(_model(model, lane), name, start_ns, end_ns, args)
        yield counter(_model(model, 0), "sequences that decode", start_ns, {"sequences": n_decodes})
        if stall_ns:
            yield slice_of(_model(model, STALL), "waited", end_ns - stall_ns, end_ns, args)


def _copies(copies: Iterable[CopyMade], models: Sequence[str]) -> Iterator[Event]:
    moved: defaultdict[Lane, int] = defaultdict(int)
    for copy in copies:
        lane = TO_HOST if copy.kind == "swap_out" else TO_DEVICE
        args: dict[str, object] = {"bytes": copy.n_bytes, "waited ms": (copy.start_ns - copy.requested_ns) / 10**6}
        name = f"{models[copy.model]} {copy.kind.replace('_', ' ')}"
        if copy.kind == "fetch":
            name = f"{models[copy.model]} layer {copy.layer}"
            args |= {"layer": copy.layer, "into home": copy.home}
        yield slice_of(lane, name, copy.start_ns, copy.end_ns, args)
        moved[lane] += copy.n_bytes
        way = "device to host" if lane is TO_HOST else "host to device"
        yield counter(Lane(lane.pid, 0), f"GiB {way} in this window", copy.end_ns, {"GiB": moved[lane] / GIB})


def _slots(copies: Iterable[CopyMade], changes: Iterable[Change], window: Window) -> Iterator[Event]:
    """What homes held: a layer from the end of its fetch until the next into the same home begins, or it is lent."""
    ends: list[tuple[int, int, int, CopyMade | None]] = [
        (copy.start_ns, copy.model, copy.home, copy) for copy in copies if copy.kind == "fetch"
    ]
    ends += [
        (change.at_ns, change.lender, home, None)
        for change in changes
        if change.lender is not None
        for home, _ in change.lent
    ]
    held: dict[tuple[int, int], CopyMade] = {}
    for at_ns, model, home, copy in sorted(ends, key=lambda end: end[0]):
        before = held.pop((model, home), None)
        if before is not None:
            yield from _held(before, at_ns)
        if copy is not None:
            held[model, home] = copy
    for copy in held.values():
        yield from _held(copy, window.until_ns)


def _held(copy: CopyMade, until_ns: int) -> Iterator[Event]:
    if until_ns > copy.end_ns:
        lane = _model(copy.model, FIRST_SLOT + copy.home)
        yield slice_of(lane, f"layer {copy.layer}", copy.end_ns, until_ns, {"layer": copy.layer})


def _memory(run: RunTables, window: Window, models: Sequence[str]) -> Iterator[Event]:
    columns = (
        "at_ns", "model", "resident_bytes", "slot_bytes", "loading_bytes", "lent_bytes", "n_base_blocks",
        "n_base_used", "n_lent_blocks", "n_lent_used",
    )  # fmt: skip
    before: dict[int, dict[str, Any]] = {}
    for row in _rows(run, "memory", columns, Window(from_ns=0, until_ns=window.until_ns), "at_ns"):
        if row["at_ns"] < window.from_ns:
            before[row["model"]] = {**row, "at_ns": window.from_ns}  # what held when the window begins
        else:
            if row["model"] in before:
                yield from _use(before.pop(row["model"]), run, models)
            yield from _use(row, run, models)
    for row in before.values():
        yield from _use(row, run, models)


def _use(row: dict[str, Any], run: RunTables, models: Sequence[str]) -> Iterator[Event]:
    model: int = row["model"]
    use: dict[str, Any] = {name: np.array([value], np.float64) for name, value in row.items()}
    block_bytes = run.info.models[model].block_bytes
    gib = {owner.label: float(owner.of(use, block_bytes)[0]) / GIB for owner in OWNERS}
    yield counter(Lane(HBM, 0), f"{models[model]} (GiB)", row["at_ns"], gib)
    blocks = {"used": row["n_base_used"] + row["n_lent_used"], "of them lent": row["n_lent_used"]}
    yield counter(_model(model, 0), "KV blocks", row["at_ns"], blocks)
