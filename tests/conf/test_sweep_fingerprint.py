from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conf.build import build
from conf.fingerprint import TELLING, fingerprint, folder_name
from tests.conf.test_build import built, with_variant
from tests.conftest import REPOSITORY

DEMO = ("+experiment=demo", "compare=[mirage]")
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,5\n2023-11-16 18:15:47,10,{}\n"

EXECUTED = """
import policies.engine  # first, so that the plain modules are taken
import sys, conf.carry_out, sim.factory
print(*(getattr(module, "__file__", None) for module in sys.modules.values()))
"""


def of(*overrides: str) -> str:
    return fingerprint(built(*DEMO, *overrides).runs[0])


@pytest.mark.parametrize(
    "overrides",
    [
        ["output.root=elsewhere", "output.folder=there", "output.figures=true", "name=other"],
        ["parallel.jobs=1", "parallel.backend=threading"],
        ["compare=[mirage,recompute]", "lengths=[sharegpt,alpaca]", "rates=[10,20]", "+grid.seed=[0,1]"],
    ],
)
def test_what_decides_nothing_about_a_run_is_not_in_its_fingerprint(overrides: list[str]) -> None:
    assert of(*overrides) == of()


@pytest.mark.parametrize(
    "override", ["seed=1", "rates=[11]", "policy.mirage.max_remapped_fraction=0.3", "hardware=h200_pcie", "mix=c2"]
)
def test_what_decides_is(override: str) -> None:
    assert of(override) != of()


def test_the_settings_of_other_policies_do_not_matter() -> None:
    def of_recompute(fraction: float) -> str:
        return of("compare=[recompute]", f"policy.mirage.max_remapped_fraction={fraction}")

    assert of_recompute(0.1) == of_recompute(0.2)


def test_a_variant_is_not_the_policy_under_the_same_settings() -> None:
    policy, variant = build(with_variant({"policy": "mirage"}, "compare=[mirage,capped]")).runs
    assert folder_name(policy) != folder_name(variant)


def test_the_bytes_of_a_trace_are_in_it(tmp_path: Path) -> None:
    def of_trace(name: str, n_tokens: int) -> str:
        path = tmp_path / name
        path.write_text(TRACE.format(n_tokens))
        return of("arrivals=azure", f"arrivals.path={path}", "rates=[]")

    assert of_trace("a.csv", 5) == of_trace("b.csv", 5)  # wherever it lies
    assert of_trace("a.csv", 6) != of_trace("b.csv", 5)


def test_no_run_executes_what_only_tells_of_runs() -> None:
    done = subprocess.run([sys.executable, "-c", EXECUTED], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    executed = done.stdout.split()
    assert str(REPOSITORY / "policies" / "engine.py") in executed
    for path in TELLING:
        assert (REPOSITORY / path).exists()
        assert not any(Path(file).is_relative_to(REPOSITORY / path) for file in executed)
