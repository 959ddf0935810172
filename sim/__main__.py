"""``python -m sim COMMAND ...``: the simulator's commands."""

from __future__ import annotations

import sys

from conf.cli import Command, dispatch

COMMANDS = {
    "run": Command(module="conf.app", summary="simulate an experiment: every policy on the same arrivals"),
    "plan": Command(module="conf.plan", summary="does lending pay with your models, traffic and GPU; what binds"),
    "models": Command(module="conf.show_models", summary="the catalogue, or the sizes that a config.json gives"),
    "report": Command(module="conf.gather", summary="what runs have come to: one table, one figure, one HTML page"),
    "compare": Command(module="conf.beside", summary="runs and logs of real servers beside each other"),
    "claims": Command(module="conf.paper.claims", summary="every number of the papers beside ours, with the figures"),
    "saturation": Command(module="conf.paper.saturation", summary="what the baseline of an experiment serves at most"),
    "validate": Command(module="conf.validate", summary="simulate what ran on a device: the error of every figure"),
    "compile": Command(module="conf.compiling", summary="make runs about twice as fast: hot modules as machine code"),
    "policies": Command(module="conf.list_policies", summary="every policy in a line, and its settings"),
    "settings": Command(module="conf.reference", summary="the reference of every setting: docs/configuration.md"),
    "roofline": Command(module="conf.roofline_error", summary="error of a roofline against measured operations"),
    "schedule": Command(module="sim.schedule", summary="the scheduler alone, under a linear step-time model"),
}


def main() -> int:
    """Carry out the command line."""
    return dispatch("python -m sim", COMMANDS, sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
