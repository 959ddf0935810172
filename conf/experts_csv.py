"""``experts.csv``: how many different experts of a layer the steps of each run were routed to (VAMP figure 11)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from conf.run import Run
from conf.schema import ExpertsModel
from sim.moe_factory import routing_of
from traces.results.folder import RunTables, read_run

NAMES = ("system", "routing", "exponent", "n_steps", "distinct_mean", "distinct_p50", "distinct_max")


def write_experts_csv(runs: Sequence[Run], folders: Sequence[Path], path: Path) -> bool:
    """Write one row a run that kept its steps and has experts; whether there was any."""
    rows = [
        _row(run, run.settings.mix.experts, read_run(folder))
        for run, folder in zip(runs, folders, strict=True)
        if run.settings.mix.experts is not None and "steps" in run.settings.keep
    ]
    if rows:
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerows([NAMES, *rows])
    return bool(rows)


def _row(run: Run, experts: ExpertsModel, tables: RunTables) -> tuple[object, ...]:
    given = {key: value for key, value in asdict(experts.routing).items() if value not in (None, ())}
    routing = routing_of(experts.shape, **given)
    steps = tables.columns("steps", ("n_prefill_tokens", "n_decode_seqs"))
    n_distinct = np.array([routing.n_distinct(int(n)) for n in steps["n_prefill_tokens"] + steps["n_decode_seqs"]])
    of = experts.routing
    return (
        run.system, of.kind, of.exponent, len(n_distinct),
        float(n_distinct.mean()), int(np.median(n_distinct)), int(n_distinct.max()),
    )  # fmt: skip
