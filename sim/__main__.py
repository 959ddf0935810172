"""``python -m sim COMMAND ...``: the simulator's commands."""

from __future__ import annotations

import sys

from conf.cli import Command, dispatch

COMMANDS = {
    "run": Command(module="conf.app", summary="simulate an experiment: every policy on the same arrivals"),
    "report": Command(module="conf.gather", summary="what runs have come to: one table, one figure, one HTML page"),
    "validate": Command(module="conf.validate", summary="simulate what ran on a device: the error of every figure"),
    "schedule": Command(module="sim.schedule", summary="the scheduler alone, under a linear step-time model"),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m sim", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
