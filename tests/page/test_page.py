# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.types import GIB
from tests.page.runs import compared, run
from tests.results.scripted import info, use
from traces.page.cautions import cautions
from traces.page.figures import MOST_POINTS, hbm_figure
from traces.page.page import MOST_IN_DETAIL, page, write_page
from traces.plots.hbm import held, spans
from traces.results.folder import RunTables, read_run
from traces.results.results import RunWriter

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """What a browser would look for elsewhere, and whether every element ends."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.labels: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "srcset", "data", "action"):
                self.addresses.append(value or "")
            if name == "aria-labelledby":
                self.labels.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.fixture
def two(tmp_path: Path) -> list[RunTables]:
    return [run(tmp_path / system, system) for system in ("recompute", "mirage")]


def test_a_page_needs_nothing_else_and_its_names_are_unique(two: list[RunTables]) -> None:
    text = page(compared(two))
    found = read(text)
    assert found.open == []
    assert all(address.startswith("#") and address[1:] in found.ids for address in found.addresses)
    assert set(found.labels) <= set(found.ids)
    assert len(set(found.ids)) == len(found.ids)
    assert "script" not in found.tags
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)


def test_the_same_runs_give_the_same_page(two: list[RunTables]) -> None:
    assert page(compared(two)) == page(compared(two))


def test_what_comes_from_a_configuration_is_text_and_no_markup(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    text = page(compared([run(tmp_path, name, config={"policy": {"x": {"note": "</pre><script>"}}})]))
    assert "script" not in read(text).tags


def test_a_page_has_the_figures_of_the_report(two: list[RunTables]) -> None:
    text = page(compared(two))
    assert "mirage against recompute: TTFT P99 0.500 s instead of 0.500 s (0%)" in text
    assert "lent 2 layers of left to the KV cache of right; 2 lent now, cap 2" in text
    assert text.count('aria-labelledby="w0r') == 2  # HBM of each system
    assert "max_remapped_fraction: 0.5" in text


def test_one_run_alone_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(compared([run(tmp_path / "run")]), path)
    assert "HBM by owner" in path.read_text(encoding="utf-8")


def test_a_run_that_kept_nothing_but_requests_has_a_page_that_says_so(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info(), tables=("requests", "gaps")):
        pass
    text = page(compared([read_run(tmp_path)]))
    assert "did not keep its steps, decisions, memory" in text
    assert "HBM by owner" not in text


def test_what_limits_the_figures_is_said(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", "a"), run(tmp_path / "b", "b", n_requests=50, n_left=3)]
    said = "\n".join(cautions(compared(runs)))
    assert "b (alpaca, 2 requests/s): 3 requests had not finished" in said
    assert "b (alpaca, 2 requests/s): 50 finished requests; a P99 over fewer than 100 is the largest value" in said
    assert "systems finished unlike numbers of requests (a 120, b 50)" in said
    assert "1 decisions were refused" in said
    assert "One seed" in said


def test_of_many_runs_the_first_are_told_in_detail_and_all_in_the_tables(tmp_path: Path) -> None:
    ((result, tables),) = compared([run(tmp_path)])
    infos = [replace(result.info, rate_per_s=float(rate)) for rate in range(MOST_IN_DETAIL + 2)]
    text = page([(replace(result, info=info), tables) for info in infos])
    assert text.count('<h2 id="w') == MOST_IN_DETAIL + 2
    assert "2 further runs are in the tables alone" in text


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=30, max_size=80)


@given(steps, st.integers(2, 10))
def test_means_over_spans_hold_as_much_over_time_as_every_step(steps: list[tuple[int, int]], n_spans: int) -> None:
    import pandas as pd

    at_ns = np.cumsum([gap for gap, _ in steps])
    values = np.array([value for _, value in steps])
    names = ("resident_bytes", "slot_bytes", "loading_bytes", "lent_bytes", "n_base_blocks", "n_base_used")
    rows = pd.DataFrame({"at_ns": at_ns, **dict.fromkeys(names, values)})
    edges, is_exact = spans(at_ns, n_spans)
    assert not is_exact
    means = held(rows, edges, is_exact=False)["lent_bytes"]
    assert means[:-1] @ np.diff(edges) == pytest.approx(values[:-1] @ np.diff(at_ns))


def test_a_figure_does_not_grow_with_the_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info(hbm_bytes=10 * GIB)) as writer:
        for number in range(50 * MOST_POINTS):
            writer.hbm(number * 10**6, [use(0, n_base_used=number * 7 % 11), use(1, lent_bytes=number % 3 * GIB)])
    assert len(hbm_figure(read_run(tmp_path), "x").svg) < 60_000
