"""Runs drawn from the registries and what each leaves, for two processes to do the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

import conf
from conf.carry_out import carry_out
from policies.registry import POLICIES
from policies.types import Arrival
from tests.conf.test_build import built
from tests.engine.strategies import cases
from tests.engine.worlds import Setup, serve
from traces.provenance import is_compiled

N_DRAWN = 150
ALL = f"compare=[{','.join(POLICIES)}]"
SERVED: tuple[tuple[str, ...], ...] = (
    ("lengths=[sharegpt]", "rates=[10]", ALL, "workload.duration_s=12"),
    ("lengths=[sharegpt]", "rates=[8]", ALL, "workload.duration_s=6", "serving.chunked_prefill=true"),
    ("lengths=[alpaca]", "rates=[20]", "compare=[mirage]", "workload.duration_s=3", "serving.share_idle_kv=true"),
    ("lengths=[sharegpt]", "rates=[8]", "compare=[mirage]", "workload.duration_s=6", "policy.mirage.preemption=swap"),
)
"""Overrides of experiment C1: three models, whose KV cache runs short."""


def drawn() -> list[tuple[str, str]]:
    """What small engines of every kind do: (setup, digest of its tables), the same draws in every process."""
    told: list[tuple[str, str]] = []

    @settings(
        max_examples=N_DRAWN, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(cases())
    def tell(case: tuple[Setup, list[Arrival]]) -> None:
        setup, arrivals = case
        outcome, recorder = serve(setup, arrivals)
        told.append((repr(setup), _digest(repr((outcome, recorder.tables)).encode())))

    tell()
    return told


def served(folder: Path) -> Iterator[tuple[str, str]]:
    """What whole runs leave in their folders: (name of a file, digest) of all that may not depend on how."""
    for nth, overrides in enumerate(SERVED):
        for run in built("+experiment=c1", "backend=sim", *overrides).runs:
            made = carry_out(run, folder / f"{nth}-{run.system}")
            for path in (*sorted(made.glob("*.parquet")), made / "summary.json"):
                yield f"{made.name}/{path.name}", _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    assert is_compiled(), f"{conf.__name__} came first, but finds nothing compiled"
    for name, digest in (*drawn(), *served(Path(sys.argv[1]))):
        print(digest, name)
