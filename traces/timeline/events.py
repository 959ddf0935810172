"""Events of Chrome's trace format, which Perfetto reads: slices, instants, counters, flows, names of lanes.

Times are given in nanoseconds and written in microseconds, as the format has it.

Source: "Trace Event Format", the Chromium project; perfetto.dev/docs/getting-started/other-formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lane:
    """Where events stand: a thread of a process, as the format calls it."""

    pid: int
    tid: int


def process(pid: int, name: str) -> list[Event]:
    """Name a group of lanes; groups stand in the order of their numbers."""
    return [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}},
    ]


def thread(lane: Lane, name: str) -> list[Event]:
    """Name a lane; those of a group stand in the order of their numbers."""
    where = {"ph": "M", "pid": lane.pid, "tid": lane.tid}
    return [
        {**where, "name": "thread_name", "args": {"name": name}},
        {**where, "name": "thread_sort_index", "args": {"sort_index": lane.tid}},
    ]


def slice_of(lane: Lane, name: str, start_ns: int, end_ns: int, args: Mapping[str, object]) -> Event:
    """Something that lasted."""
    return {**_at("X", lane, name, start_ns), "dur": (end_ns - start_ns) / 1000, "args": dict(args)}


def instant(lane: Lane, name: str, at_ns: int, args: Mapping[str, object]) -> Event:
    """Something that happened."""
    return {**_at("i", lane, name, at_ns), "s": "t", "args": dict(args)}


def counter(lane: Lane, name: str, at_ns: int, values: Mapping[str, float]) -> Event:
    """Numbers from ``at_ns`` on."""
    return {**_at("C", lane, name, at_ns), "args": dict(values)}


def flow(number: int, source: Lane, at_ns: int, target: Lane, start_ns: int) -> list[Event]:
    """An arrow from the slice at ``at_ns`` in one lane to the slice that starts at ``start_ns`` in another."""
    told = {"cat": "decision", "id": number}
    return [
        {**_at("s", source, "causes", at_ns), **told},
        {**_at("f", target, "causes", start_ns), **told, "bp": "e"},
    ]


def _at(phase: str, lane: Lane, name: str, at_ns: int) -> Event:
    return {"ph": phase, "pid": lane.pid, "tid": lane.tid, "name": name, "ts": at_ns / 1000}
