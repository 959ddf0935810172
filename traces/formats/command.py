"""``python -m traces formats``: the formats that are read, and the rules by which odd files are."""

from __future__ import annotations

from collections.abc import Sequence

from traces.cli import Parser
from traces.formats import FORMATS
from traces.inspect.oddities import ODDITIES


def main(arguments: Sequence[str]) -> int:
    """Carry out ``formats``.

    Raises:
        ValueError: the command line is wrong.
    """
    Parser(prog="python -m traces formats", description=__doc__).parse_args(arguments)
    print("Formats, found from the contents of a file, as CSV, JSON lines or a JSON array, plain or gzip:")
    for kind in FORMATS:
        columns = f" [{', '.join(sorted(kind.layout.needs))}]" if kind.layout is not None else ""
        print(f"  {kind.name:<15} {kind.source}{columns}")
    print("\nWhat is odd about files, and how it is read:")
    for key, what in ODDITIES.items():
        print(f"  {key:<19} {what}")
    return 0
