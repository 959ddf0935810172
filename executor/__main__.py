"""``python -m executor COMMAND ...``: the executor's commands."""

from __future__ import annotations

import sys

from conf.cli import Command, dispatch

COMMANDS = {
    "run": Command(module="conf.app", summary="run an experiment on a real device: every policy on the same arrivals"),
    "profile": Command(
        module="conf.profile", summary="measure this device: a hardware file and tables for the simulator"
    ),
    "doctor": Command(module="executor.doctor", summary="what this machine can run, what is missing, and the mend"),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m executor", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
