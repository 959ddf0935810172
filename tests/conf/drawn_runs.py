"""Runs drawn from the registries and what each leaves, for two processes to do the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

import conf
from conf.carry_out import carry_out
from policies.engine import Outcome
from policies.policy import OffloadsExperts
from policies.registry import POLICIES
from tests.conf.test_build import built
from tests.engine import moe_worlds
from tests.engine.recorder import Recorder
from tests.engine.strategies import cases
from tests.engine.worlds import serve
from traces.results.provenance import is_compiled

Case = TypeVar("Case")

N_DRAWN = 60  # of each kind
DENSE = [name for name, policy in POLICIES.items() if not isinstance(policy(), OffloadsExperts)]
ALL = f"compare=[{','.join(DENSE)}]"
SERVED: tuple[tuple[str, ...], ...] = (
    ("lengths=[sharegpt]", "rates=[10]", ALL, "workload.duration_s=6"),
    ("lengths=[sharegpt]", "rates=[8]", "compare=[swap,mirage]", "serving.chunked_prefill=true"),
    ("lengths=[alpaca]", "rates=[20]", "compare=[mirage]", "serving.share_idle_kv=true"),
    ("lengths=[alpaca]", "rates=[20]", "compare=[mirage]", "serving.kv_order=first_fit"),
    ("lengths=[sharegpt]", "rates=[8]", "compare=[mirage]", "policy.mirage.preemption=swap"),
)
"""Overrides of experiment C1: three models, whose KV cache runs short."""


def drawn() -> Iterator[tuple[str, str]]:
    """What small engines of every kind do: (setup, digest of its tables), the same draws in every process."""
    yield from _drawn(cases(), lambda case: serve(*case))
    yield from _drawn(cases(scheduler="vllm_v1"), lambda case: serve(*case))
    yield from _drawn(moe_worlds.cases(), lambda case: moe_worlds.serve(*case))


def _drawn(kind: SearchStrategy[Case], run: Callable[[Case], tuple[Outcome, Recorder]]) -> list[tuple[str, str]]:
    told: list[tuple[str, str]] = []

    @settings(
        max_examples=N_DRAWN, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(kind)
    def tell(case: Case) -> None:
        try:
            outcome, recorder = run(case)
            tables = repr((outcome, recorder.tables))
        except ValueError as refusal:  # a machine without what the policy needs
            tables = str(refusal)
        told.append((repr(case), _digest(tables.encode())))

    tell()
    return told


def served(folder: Path) -> Iterator[tuple[str, str]]:
    """What whole runs leave in their folders: (name of a file, digest) of all that may not depend on how."""
    for nth, overrides in enumerate(SERVED):
        for run in built("+experiment=c1", "backend=sim", "workload.duration_s=4", *overrides).runs:
            made = carry_out(run, folder / f"{nth}-{run.system}")
            for path in (*sorted(made.glob("*.parquet")), made / "summary.json"):
                yield f"{made.name}/{path.name}", _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    kind, into = sys.argv[1:]
    assert is_compiled() == (kind == "compiled"), f"{conf.__name__} came first, or finds nothing compiled"
    for name, digest in (*drawn(), *served(Path(into))):
        print(digest, name)
