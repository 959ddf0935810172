from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf.errors import OmegaConfBaseException

from conf.build import Experiment, build
from conf.grid import points
from conf.run import run_info
from tests.conf.test_build import built, with_variant

CAP = "policy.mirage.max_remapped_fraction"
QUANTUM = "tenancy.quantum_s"
VALUES = st.integers(0, 9) | st.booleans() | st.text("abc", min_size=1)
GRIDS = st.dictionaries(
    st.sampled_from(["seed", CAP, QUANTUM, "serving.block_tokens"]),
    st.lists(VALUES, min_size=1, max_size=3, unique=True),
)


def names(experiment: Experiment) -> list[tuple[str, str, int]]:
    """(workload, system, seed) of each run, as results have them."""
    infos = [run_info(run) for run in experiment.runs]
    return [(info.workload, info.label, info.seed) for info in infos]


def nested(grid: Mapping[str, object]) -> dict[str, object]:
    """The same grid without dots."""
    tree: dict[str, Any] = {}
    for key, values in grid.items():
        *groups, last = key.split(".")
        here = tree
        for group in groups:
            here = here.setdefault(group, {})
        here[last] = values
    return tree


@given(GRIDS)
def test_every_combination_of_the_values_is_one_point(grid: dict[str, list[object]]) -> None:
    found = points(grid)
    assert len(found) == prod(map(len, grid.values()))
    assert len({tuple(point.items()) for point in found}) == len(found)
    assert all(point[key] in values for point in found for key, values in grid.items())


@given(GRIDS)
def test_a_grid_may_be_written_with_dots_or_nested(grid: dict[str, list[object]]) -> None:
    assert {frozenset(point.items()) for point in points(grid)} == {
        frozenset(point.items()) for point in points(nested(grid))
    }


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ({"seed": 1}, r"grid\.seed=1 must be a list; write \[1\]"),
        ({"seed": []}, r"grid\.seed is empty"),
        ({"seed": [1, 1]}, r"grid\.seed=\[1, 1\] has a value twice"),
        ({"seed": [[1]]}, r"grid\.seed: \[1\] must be a number, a word"),
        ({"a.b": [1], "a": {"b": [2]}}, r"grid\.a\.b is there twice"),
        ({"output.figures": [True]}, r"grid\.output\.figures: an experiment has one output"),
    ],
)
def test_a_faulty_grid_is_refused(grid: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        points(grid)


@pytest.mark.parametrize("axis", ["seed=[0,-1]", "sed=[1]", "hardware=[h200_pcie]", "mix.models.opt_13b.share=[0.1]"])
def test_every_point_is_checked_before_the_first_starts(axis: str) -> None:
    with pytest.raises((ValueError, OmegaConfBaseException)):
        built("+experiment=demo", f"+grid.{axis}")


def test_a_setting_of_one_policy_names_its_runs_and_leaves_the_others_alone() -> None:
    assert names(built("+experiment=demo", f"+grid.{CAP}=[0.1,0.2]")) == [
        ("sharegpt", "recompute", 0),
        ("sharegpt", "mirage max_remapped_fraction=0.1", 0),
        ("sharegpt", "mirage max_remapped_fraction=0.2", 0),
    ]


def test_any_other_setting_is_a_workload_under_which_all_systems_run() -> None:
    assert names(built("+experiment=demo", f"+grid.{QUANTUM}=[0.1,0.2]", "+grid.seed=[0,1]", "compare=[swap]")) == [
        (f"sharegpt quantum_s={quantum_s}", "swap", seed) for quantum_s in (0.1, 0.2) for seed in (0, 1)
    ]


def test_the_values_reach_the_runs() -> None:
    runs = built("+experiment=demo", f"+grid.{CAP}=[0.1,0.2]", "+grid.seed=[0,1]", "compare=[mirage]").runs
    assert [(run.settings.policy["mirage"], run.settings.seed, run.workload.seed) for run in runs] == [
        (run.policy, seed, seed) for run, seed in zip(runs, [0, 1, 0, 1], strict=True)
    ]
    assert len({repr(run.policy) for run in runs}) == 2


def test_a_rate_in_the_grid_is_the_rate() -> None:
    runs = built("+experiment=demo", "+grid.arrivals.rate=[2,4]", "compare=[recompute]").runs
    assert [run.settings.arrivals.rate for run in runs] == [2, 4]
    assert {run_info(run).workload for run in runs} == {"sharegpt"}


def test_what_a_variant_sets_itself_no_grid_changes() -> None:
    capped = {"policy": "mirage", "overrides": {"policy": {"mirage": {"max_remapped_fraction": 0.1}}}}
    experiment = build(with_variant(capped, "compare=[mirage,capped]", f"+grid.{CAP}=[0.2,0.3]"))
    assert [label for _, label, _ in names(experiment)] == [
        "mirage max_remapped_fraction=0.2",
        "capped",
        "mirage max_remapped_fraction=0.3",
    ]
