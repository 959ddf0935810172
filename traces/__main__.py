"""``python -m traces COMMAND ...``: what is in a trace file, a file in one form, a file made from fits."""

from __future__ import annotations

import sys

from traces.cli import Command, dispatch

COMMANDS = {
    "inspect": Command(
        module="traces.inspect.command", summary="what a trace file is, what is in it, and everything odd about it"
    ),
    "convert": Command(module="traces.writing.convert", summary="any trace file as one CSV or JSON lines"),
    "make": Command(
        module="traces.writing.make", summary="a synthetic trace from the fits that come with this package"
    ),
    "formats": Command(
        module="traces.formats.command", summary="the formats that are read, and the rules by which odd files are"
    ),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m traces", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
