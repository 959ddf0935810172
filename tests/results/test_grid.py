from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.results.scripted import info
from traces.results.folder import RunInfo
from traces.results.grid import differences, named, short_keys

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join)


def run(system: str = "mirage", **config: Any) -> RunInfo:
    return info(system=system, config=config)


def grids(*runs: RunInfo) -> list[dict[str, object]]:
    return [dict(grid) for grid in differences(runs)]


def test_runs_of_a_system_differ_in_the_settings_that_have_several_values() -> None:
    runs = [run(tenancy={"quantum_s": quantum_s}, serving={"block_tokens": 16}) for quantum_s in (0.1, 0.2)]
    assert grids(*runs) == [{"tenancy.quantum_s": 0.1}, {"tenancy.quantum_s": 0.2}]


def test_settings_in_which_only_other_systems_differ_do_not_count() -> None:
    capped = [run(policy={"mirage": {"cap": cap}}) for cap in (1, 2)]
    assert grids(run("recompute", policy={"recompute": {}}), *capped) == [
        {},
        {"policy.mirage.cap": 1},
        {"policy.mirage.cap": 2},
    ]
    free_link = run("free_link", hardware={"link": 2})  # a variant: it is the only one of its name
    assert grids(run(hardware={"link": 1}), free_link) == [{}, {}]


def test_seed_and_rate_have_their_own_place() -> None:
    assert grids(run(seed=0, arrivals={"rate": 1.0}), run(seed=1, arrivals={"rate": 2.0})) == [{}, {}]


def test_a_group_that_is_chosen_by_name_differs_by_its_name() -> None:
    runs = [run(hardware={"name": name, "link": {"bytes": size}}) for name, size in (("a", 1), ("b", 2))]
    assert grids(*runs) == [{"hardware.name": "a"}, {"hardware.name": "b"}]


def test_a_setting_of_the_policy_names_the_system_any_other_the_workload() -> None:
    both = info(grid={"policy.mirage.max_remapped_fraction": 0.1, "tenancy.quantum_s": 2.0, "hardware.name": "a"})
    assert both.label == "mirage max_remapped_fraction=0.1"
    assert both.workload == "alpaca quantum_s=2 hardware=a"


def test_values_are_written_as_in_yaml() -> None:
    assert named("x", {"a": True, "b": None, "c": 1e-9, "d": 10**12}) == "x a=true b=null c=1e-09 d=1000000000000"


@given(st.sets(NAMES, min_size=1, max_size=6))
def test_short_keys_are_clear_tails_as_short_as_can_be(keys: set[str]) -> None:
    def holders(tail: str) -> list[str]:
        return [key for key in keys if f".{key}".endswith(f".{tail}")]

    for key, short in short_keys(keys).items():
        assert f".{key}".endswith(f".{short}")
        assert holders(short) == [key] or short == key
        shorter = short.partition(".")[2]
        assert not shorter or len(holders(shorter)) > 1
