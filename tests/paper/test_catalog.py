"""The catalogs say what the papers say, completely, and every entry can be answered."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from conf.build import Experiment
from conf.paper.catalog import papers, read_catalog
from conf.paper.collect import composed
from conf.paper.figures import FIGURES
from traces.claims import TBT_P99
from traces.plots.sweep import PANELS

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "../shared/reference/claims.csv"

SCORED = ("e2e", "e2e-range", "ablation", "micro", "arithmetic")
SETUP = {"V066", "V071", "V080", "V081", "V082", "V083", "V084", "V087", "V088", "V089", "V091", "V092"}
"""VAMP's settings, which the configuration takes over, and the size of its code."""

SECOND_HAND = {"M033"}
"""Contradicts the paper's own text: not to be scored unless the second version is obtained."""


@cache
def experiment(name: str) -> Experiment:
    """Composing one takes a second."""
    return composed(name)


experiments = sorted({name for entry in read_catalog(*papers()) for name in entry.experiments})


def _numbers(row: dict[str, str]) -> list[float]:
    """What the paper gives: its average, or least and greatest, or the greatest."""
    given = [row["value_avg"]] if row["value_avg"] else [row["value_low"], row["value_high"]]
    return [abs(float(value)) for value in given if value]


@pytest.mark.skipif(not CLAIMS.exists(), reason="the reference lies beside the repository")
def test_every_mirage_claim_that_is_to_be_scored_is_there_with_the_papers_number() -> None:
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["paper"] == "MIRAGE" and row["check"] in SCORED}
    entries = {entry.id: entry for entry in read_catalog("mirage")}
    assert entries.keys() == rows.keys() - SECOND_HAND
    for name, entry in entries.items():
        assert entry.check == rows[name]["check"]
        if entry.kind != "ordering" and name != "M057":  # which the reference puts in words
            assert list(entry.values) == _numbers(rows[name]), name


@pytest.mark.skipif(not CLAIMS.exists(), reason="the reference lies beside the repository")
def test_every_vamp_claim_that_is_to_be_scored_is_there_with_the_papers_number() -> None:
    with CLAIMS.open(newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["paper"] == "VAMP" and row["check"] != "workload"}
    entries = {entry.id: entry for entry in read_catalog("vamp")}
    assert entries.keys() == rows.keys() - SETUP
    for name, entry in entries.items():
        assert entry.check == rows[name]["check"]
        if entry.kind != "ordering" and name != "V023":  # whose two values the reference has as least and greatest
            assert list(entry.values)[-len(_numbers(rows[name])) :] == _numbers(rows[name]), name
        if entry.kind == "pair":
            before = rows[name]["baseline_value"].strip("~ s%")
            assert entry.values[0] == float(before), name


@pytest.mark.parametrize("name", experiments)
def test_the_experiments_of_claims_can_run_and_leave_what_is_read(name: str) -> None:
    found = experiment(name)
    assert found.settings.figure in FIGURES or found.settings.sessions
    assert bool(found.runs) == bool(found.settings.compare)


def test_changes_and_columns_name_systems_that_their_experiments_compare() -> None:
    for entry in read_catalog(*papers()):
        if entry.ours is not None and (entry.ours.change or entry.ours.column):
            compared = {system for name in entry.experiments for system in experiment(name).settings.compare}
            against = {entry.ours.against} - {None}
            assert {*entry.ours.systems, *against} <= compared, entry.id


def test_evidence_names_a_file_that_is_there() -> None:
    for entry in read_catalog(*papers()):
        for found in (entry.refuted, entry.open):
            assert found is None or (ROOT / found.evidence).exists(), entry.id


def test_p99_tbt_is_first_read_as_figures_show_it() -> None:
    assert PANELS[0].metric == TBT_P99
    for entry in read_catalog("mirage"):
        if entry.ours is not None and entry.ours.change and ("P99 TBT" in entry.text or "tail latency" in entry.text):
            assert entry.ours.change[0] == TBT_P99, entry.id
