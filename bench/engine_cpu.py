"""CPU seconds of the thread of the engine, for the only run of a command line (``bench.simulator`` calls it)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time

from hydra import compose, initialize_config_module

from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out


def main(overrides: Sequence[str]) -> int:
    """Print them."""
    with initialize_config_module("conf", version_base="1.3"):
        (run,) = build(compose("config", overrides=list(overrides))).runs
    with TemporaryDirectory() as folder:
        began_s = thread_time()
        carry_out(run, Path(folder) / "run")
        print(thread_time() - began_s)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
