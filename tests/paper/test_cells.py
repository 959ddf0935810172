"""Cells of an experiment's tables: which rows a claim reads, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conf.paper.catalog import entry_from
from conf.paper.cells import Tables, cells, read_tables, term
from conf.paper.score import Scored, Told, score

SESSIONS = """\
n_sessions,system,seed,ttft_p99_s,waiting,cost_ms
16,old,0,10,4,
16,old,1,30,6,
16,new,0,2,0,
16,new,1,2,0,
24,old,0,40,8,
24,new,0,5,0,
"""


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    (tmp_path / "sessions.csv").write_text(SESSIONS, encoding="utf-8")
    (tmp_path / "turns.csv").write_text(
        "system,seed,turn,ttft_p50_s\nold,0,0,9\nold,0,1,1\nold,0,2,2\nold,0,3,6\n", encoding="utf-8"
    )
    return read_tables(tmp_path)


def scored(tables: Tables, paper: object, **ours: Any) -> Scored:
    given = {"text": "t", "source": "s", "check": "e2e", "experiments": ["x"], "paper": paper, "ours": ours}
    (one,) = score([entry_from("V1", "vamp", given)], {"x": Told(results=[], numbers={}, tables=tables)})
    return one


def test_a_cell_is_the_mean_over_the_seeds_of_its_point(tables: Tables) -> None:
    assert cells(tables["sessions"], "ttft_p99_s", ["old"], {}) == [20, 40]
    assert cells(tables["sessions"], "ttft_p99_s", ["old"], {"seed": 1}) == [30]
    assert cells(tables["sessions"], "ttft_p99_s", [], {"n_sessions": 24}) == [40, 5]


def test_two_values_keep_what_lies_from_the_first_to_the_last(tables: Tables) -> None:
    assert cells(tables["turns"], "ttft_p50_s", ["old"], {"turn": [1, 2]}) == [1, 2]


def test_only_tables_that_are_there_are_read(tables: Tables) -> None:
    assert set(tables) == {"sessions", "turns"}


def test_a_value_is_read_at_a_point_and_a_range_spans_the_points(tables: Tables) -> None:
    one = scored(tables, {"value": 20}, column="ttft_p99_s", of="old", where={"n_sessions": 16})
    assert (one.error, one.verdict) == (0, "right")
    spanned = scored(tables, {"value": [20, 80]}, column="ttft_p99_s", of="old")
    assert spanned.ours is not None
    assert spanned.ours.values == (20, 40)
    assert (spanned.error, spanned.verdict) == (pytest.approx(0.693, abs=1e-3), "wrong")


def test_over_takes_the_mean_the_largest_or_the_smallest_of_the_points(tables: Tables) -> None:
    for over, value in (("mean", 30), ("max", 40), ("min", 20)):
        assert scored(tables, {"value": value}, column="ttft_p99_s", of="old", over=over).error == 0


def test_a_pair_is_right_where_the_same_of_the_two_is_more(tables: Tables) -> None:
    reading = {"column": "ttft_p99_s", "of": "new", "against": "old", "where": {"n_sessions": 16}}
    one = scored(tables, {"pair": [40, 2]}, **reading)
    assert one.ours is not None
    assert one.ours.values == (20, 2)
    assert (one.error, one.verdict) == (pytest.approx(0.693, abs=1e-3), "right")
    assert scored(tables, {"pair": [2, 40]}, **reading).verdict == "wrong"


def test_nothing_where_the_paper_has_nothing_is_no_error_and_anything_else_is_without_bound(tables: Tables) -> None:
    assert scored(tables, {"value": 0}, column="waiting", of="new").error == 0
    assert scored(tables, {"value": 0}, column="waiting", of="old").error == float("inf")


def test_changes_and_factors_are_over_the_other_system(tables: Tables) -> None:
    at = {"n_sessions": 16}
    change = scored(tables, {"reduction": 90}, column="ttft_p99_s", of="new", against="old", where=at)
    assert change.error == pytest.approx(0)
    factor = scored(tables, {"factor": 10}, column="ttft_p99_s", of="old", against="new", where=at)
    assert factor.error == pytest.approx(0)


def test_an_ordering_names_cells(tables: Tables) -> None:
    holds = "new.ttft_p99_s[n_sessions=24] < 10.5 < old.ttft_p99_s[n_sessions=16] and new.waiting < old.waiting"
    assert scored(tables, "ordering", holds=holds).verdict == "right"
    assert scored(tables, "ordering", holds="old.waiting < new.waiting").verdict == "wrong"
    assert term("10.5", tables) is None


def test_an_empty_cell_leaves_a_claim_unscored(tables: Tables) -> None:
    assert scored(tables, {"value": 1}, column="cost_ms", of="new").verdict == "unscored"
    assert scored(tables, "ordering", holds="new.cost_ms < 1").verdict == "unscored"


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ({"column": "ttft", "of": "new"}, "V1: sessions.csv: no column ttft; there are n_sessions, system"),
        ({"column": "waiting", "of": "new", "where": {"n": 1}}, "V1: sessions.csv: no column n; there are"),
        ({"column": "waiting", "of": "newer"}, "V1: sessions.csv: no row of newer with {}"),
        ({"column": "waiting", "of": "new", "file": "bins"}, "V1: bins.csv: no row of new with {}"),
        ({"holds": "newer.waiting < 1"}, "V1: newer.waiting: no row of newer"),
        ({"column": "waiting", "of": "new", "file": "bin"}, "V1: ours.file=bin must be one of sessions, turns"),
    ],
)
def test_what_no_table_has_is_named(tables: Tables, ours: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=r"^claim V1: ") as refused:
        scored(tables, "ordering" if "holds" in ours else {"value": 1}, **ours)
    assert told in str(refused.value)


@pytest.mark.parametrize("paper", [{"pair": [1, 2]}, {"reduction": 50}])
def test_what_compares_systems_needs_both(tables: Tables, paper: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"claim V1: ours.column for .* needs against: BASELINE"):
        scored(tables, paper, column="waiting", of="new")
