"""``python -m traces COMMAND ...``: trace files inspected, converted and made; runs written for other programs."""

from __future__ import annotations

import sys

from traces.cli import Command, dispatch

COMMANDS = {
    "inspect": Command(
        module="traces.inspect.command", summary="what a trace file is, what is in it, and everything odd about it"
    ),
    "convert": Command(module="traces.writing.convert", summary="any trace file as one CSV or JSON lines"),
    "make": Command(module="traces.writing.make", summary="a synthetic trace from the fits of this package"),
    "timeline": Command(module="traces.timeline.write", summary="a window of a run, for ui.perfetto.dev"),
    "export": Command(module="traces.interchange.export", summary="a run as vLLM's metrics, for Prometheus"),
    "formats": Command(
        module="traces.formats.command", summary="the formats that are read, and the rules by which odd files are"
    ),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m traces", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
