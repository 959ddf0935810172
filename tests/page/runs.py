"""Small runs of which a page tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.journal import GapCause
from policies.serving.sequence import State
from policies.types import GIB
from tests.results.scripted import NO_SCHEDULER, decide, info, sequence, use
from traces.claims import Result
from traces.results.folder import RunTables, read_run
from traces.results.metrics import summarise
from traces.results.results import RunWriter

CONFIG = {"policy": {"mirage": {"max_remapped_fraction": 0.5}}, "seed": 7}


def run(folder: Path, system: str = "mirage", *, n_requests: int = 120, n_left: int = 0, **changes: Any) -> RunTables:
    """A run in which model 0 lends two layers, one of them for a while."""
    given = {"system": system, "hbm_bytes": 10 * GIB, "config": CONFIG, **changes}
    with RunWriter(folder, info(**given)) as writer:
        for number in range(n_requests):
            seq = sequence(number, arrival_s=number, tokens_s=[number + 0.5, number + 0.6, number + 0.8])
            writer.retired(number % 2, 0, [seq], NO_SCHEDULER)
            writer.gaps(number % 2, GapCause.DECODE, [10**8, 2 * 10**8], 1)
            writer.hbm(number * 10**9, [use(0, lent_bytes=number % 3 * GIB), use(1, n_base_used=number % 10)])
        writer.outlived(0, [sequence(n_requests + n, state=State.WAITING) for n in range(n_left)])
        decide(writer, 1.0, [], [1])
        decide(writer, 1.5, [1], [1, 2])
        decide(writer, 3.0, [1, 2], [1, 2, 3], refused=True)
        decide(writer, 9.0, [1, 2], [1])
    return read_run(folder)


def compared(runs: Sequence[RunTables]) -> list[tuple[Result, RunTables]]:
    return [(Result(info=each.info, summary=summarise(each)), each) for each in runs]
