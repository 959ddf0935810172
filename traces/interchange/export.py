"""``python -m traces export RUN --to prometheus``: a run as another program reads it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from traces.cli import Parser
from traces.interchange.prometheus import exposition
from traces.results.folder import read_run


def main(arguments: Sequence[str]) -> int:
    """Carry out ``export``.

    Raises:
        ValueError: the command line is wrong, or the folder holds no run.
    """
    parser = Parser(prog="python -m traces export", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run: run.json and its tables")
    parser.add_argument("--to", choices=("prometheus",), required=True, help="vLLM's metrics as Prometheus text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="else the standard output")
    given = parser.parse_args(arguments)
    data = exposition(read_run(given.run))
    if given.out is None:
        sys.stdout.write(data.decode())
        return 0
    try:
        given.out.write_bytes(data)
    except OSError as error:
        raise ValueError(f"cannot write {given.out}: {error.strerror}; name a file that can be written") from error
    print(f"wrote {given.out}")
    return 0
