"""The verdicts ``refuted`` and ``open`` are what the committed sweep says: one rule for every claim."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bench.sensitivity import is_inside
from conf.paper.catalog import Entry, read_catalog
from conf.paper.score import WITHIN, is_near

ROOT = Path(__file__).parents[2]
SWEEP = "docs/claims/sensitivity.csv"


def rows(name: str) -> list[dict[str, str]]:
    with (ROOT / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def swept(claim: str) -> list[float]:
    return [float(row["ours_percent"]) / 100 for row in rows(SWEEP) if row["claim"] == claim]


def is_reached(entry: Entry) -> bool:
    return any(is_near(ours, entry.changes[0]) for ours in swept(entry.id))


def judged(paper: str, sweep: str) -> list[Entry]:
    """The claims whose verdict rests on a sweep."""
    return [
        entry
        for entry in read_catalog(paper)
        if sweep in {each.evidence for each in (entry.refuted, entry.open) if each is not None}
    ]


JUDGED = judged("mirage", SWEEP)


@pytest.mark.parametrize("entry", JUDGED, ids=lambda entry: entry.id)
def test_refuted_is_near_under_no_assumption_and_open_under_some(entry: Entry) -> None:
    assert swept(entry.id)
    assert (entry.refuted is None) == (entry.open is not None) == is_reached(entry)


def test_every_wrong_direction_of_the_committed_table_is_judged() -> None:
    table = {row["id"]: row for row in rows("docs/claims/mirage.csv")}
    kept = {name: row for name, row in table.items() if not row["verdict"].startswith("as ")}
    wrong = {name for name, row in kept.items() if row["direction"] == "wrong" and row["check"] in ("e2e", "ablation")}
    assert wrong <= {entry.id for entry in JUDGED}
    assert not [name for name, row in table.items() if row["verdict"] == "wrong"]


def test_four_in_five_of_the_papers_numbers_lie_within_the_stated_sensitivity() -> None:
    entries = {entry.id: entry for entry in read_catalog("mirage")}
    spans = {name: swept(name) for name in dict.fromkeys(row["claim"] for row in rows(SWEEP))}
    checked = [row for row in rows("docs/claims/mirage.csv") if row["check"] in ("e2e", "ablation") and row["error"]]
    scored = [row["id"] for row in checked if not row["verdict"].startswith("as ")]
    assert set(spans) == set(scored)
    inside = [name for name, ours in spans.items() if is_inside(entries[name].changes[0], ours)]
    assert len(inside) >= 0.8 * len(spans)


def test_a_change_below_ten_percent_is_inside_by_five_points() -> None:
    assert is_inside(0.0, [0.001, 0.003])
    assert is_inside(0.079, [0.01, 0.03])
    assert not is_inside(0.0, [0.051, 0.2])
    assert not is_inside(-0.58, [-0.57, -0.4])


VAMP_SWEEP = "docs/claims/vamp_sensitivity.csv"
VAMP_JUDGED = judged("vamp", VAMP_SWEEP)


@pytest.mark.parametrize("entry", VAMP_JUDGED, ids=lambda entry: entry.id)
def test_the_same_holds_of_vamps_claims(entry: Entry) -> None:
    swept_errors = [float(row["error"] or "inf") for row in rows(VAMP_SWEEP) if row["claim"] == entry.id]
    assert len(swept_errors) > 1
    assert (entry.refuted is None) == (entry.open is not None) == (min(swept_errors) <= WITHIN)


def test_no_direction_of_vamps_committed_table_is_wrong_without_a_verdict() -> None:
    judgements = {entry.id for entry in read_catalog("vamp") if entry.refuted is not None or entry.open is not None}
    table = rows("docs/claims/vamp.csv")
    assert {row["id"] for row in table if row["direction"] == "wrong"} == judgements
    assert not [row["id"] for row in table if row["verdict"] == "wrong"]
