"""The timeline as a file, and the command that writes it."""

from __future__ import annotations

import gzip
import json
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from policies.types import NS_PER_S
from traces.cli import Parser
from traces.results.copies import has_copies
from traces.results.folder import RunTables, read_run
from traces.timeline.timeline import Window, default_window, events

NAME = "timeline.json.gz"

MOST_EVENTS = 10**6
"""Ours: 200,000 events are 18.5 MB of JSON, 1.3 MB packed (measured); some times as many still open in a browser."""


def write_timeline(run: RunTables, window: Window, path: Path) -> int:
    """Write a window of a run; a name that ends in ``.gz`` is packed.

    Returns:
        The number of events.

    Raises:
        ValueError: there are too many events, or the file cannot be written.
    """
    told = events(run, window)
    if len(told) > MOST_EVENTS:
        raise ValueError(f"the window holds {len(told):,} events, more than {MOST_EVENTS:,}; name a shorter --window")
    span = {"from_s": window.from_ns / NS_PER_S, "until_s": window.until_ns / NS_PER_S}
    document = {
        "displayTimeUnit": "ns",
        "otherData": {"system": run.info.label, "workload": run.info.workload, "device": run.info.device, **span},
        "traceEvents": told,
    }
    data = json.dumps(document, separators=(",", ":")).encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; name a file that can be written") from error
    return len(told)


def main(arguments: Sequence[str]) -> int:
    """Carry out ``timeline``.

    Raises:
        ValueError: the command line is wrong, or the folder holds no run.
    """
    parser = Parser(prog="python -m traces timeline", description="A window of a run for ui.perfetto.dev.")
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run: run.json and its tables")
    parser.add_argument("--window", type=_span, metavar="FROM,UNTIL", help="seconds; else around the first change")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"else {NAME} in the folder of the run")
    given = parser.parse_args(arguments)
    run = read_run(given.run)
    window = given.window or default_window(run)
    path = given.out or given.run / NAME
    n_events = write_timeline(run, window, path)
    print(f"{n_events:,} events from {window.from_ns / NS_PER_S:g} s to {window.until_ns / NS_PER_S:g} s in {path}")
    if not has_copies(given.run):
        print("without copies on the link: the run did not keep them; run it with timeline.window=[FROM,UNTIL]")
    print("open it at ui.perfetto.dev or chrome://tracing")
    return 0


def _span(text: str) -> Window:
    try:
        return Window.seconds([float(part) for part in text.split(",")])
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
