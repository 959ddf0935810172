"""``python -m sim COMMAND ...``: the simulator's commands."""

from __future__ import annotations

import sys

from conf.cli import Command, dispatch

COMMANDS = {
    "run": Command(module="conf.app", summary="simulate an experiment: every policy on the same arrivals"),
    "report": Command(module="conf.gather", summary="one table and one figure of experiments that have run"),
    "claims": Command(module="conf.paper.claims", summary="every number of the papers beside ours, with the figures"),
    "saturation": Command(module="conf.paper.saturation", summary="what the baseline of an experiment serves at most"),
    "validate": Command(module="conf.validate", summary="simulate what ran on a device: the error of every figure"),
    "schedule": Command(module="sim.schedule", summary="the scheduler alone, under a linear step-time model"),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m sim", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
