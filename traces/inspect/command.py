"""``python -m traces inspect FILE``: what a trace file is, what is in it, and everything odd about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from traces.cli import Parser
from traces.formats.values import UNITS_NS
from traces.inspect.inspection import Inspection
from traces.inspect.report import report, text
from traces.workload.context import context_tokens


def main(arguments: Sequence[str]) -> int:
    """Carry out ``inspect``.

    Raises:
        ValueError: the command line is wrong, or the file is not usable.
    """
    parser = Parser(prog="python -m traces inspect", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--cache-blocks", type=_capacities, default=(), metavar="N[,N...]", help=_CACHE_HELP)
    parser.add_argument(
        "--model", metavar="NAME", help="of the catalogue, or a config.json: which requests are too long"
    )
    parser.add_argument("--context", type=_positive, metavar="TOKENS", help="the same with a number")
    parser.add_argument("--time-unit", choices=tuple(UNITS_NS), help="of times that are numbers")
    parser.add_argument("--rows", type=_positive, default=5, metavar="N", help="row numbers to name (5; at most 1000)")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    options = parser.parse_args(arguments)
    context = context_tokens(options.model) if options.model is not None else options.context
    found = Inspection(
        options.file, time_unit=options.time_unit, cache_blocks=options.cache_blocks, context_tokens=context
    )
    document = report(found, options.rows)
    print(json.dumps(document, indent=2) if options.json else text(document))
    return 0


_CACHE_HELP = "capacities of prefix caches to try, in blocks (the file's own, or 512 tokens)"


def _capacities(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)
