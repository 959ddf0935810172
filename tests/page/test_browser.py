"""The pages in a real browser: needs Chromium on the PATH, and ``pip install -e .[browser]``; skipped without."""

# playwright and axe are not installed where types are checked.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.planning.answer import Planner
from conf.planning.ask import question
from conf.planning.page import page as plan_page
from tests.page.runs import compared, run
from traces.page.page import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox"]  # a container has no namespaces to give
DESKTOP, PHONE = 1280, 390
MOST_BYTES = 3 * 10**6

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play, play.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as browser:
        yield browser


PLAN = "--models opt_13b*2 --hardware h100_sxm --rate 2 --lengths 300:60 --seeds 2 --requests 80 --jobs 1"


@pytest.fixture(scope="module", params=["run", "plan"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    path = folder / "page.html"
    if request.param == "run":
        write_page(compared([run(folder / system, system) for system in ("recompute", "mirage")]), path)
    else:
        asked = question([*PLAN.split(), "--precision", "0.1", "--report", str(path)])
        path.write_text(plan_page(Planner(asked).answer()))
    return path


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("opened", [False, True])
def test_a_page_is_accessible_fits_the_screen_and_asks_for_nothing(
    browser: Any, file: Path, width: int, opened: bool
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    if opened:
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert asked == [file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert file.stat().st_size < MOST_BYTES
    found = axe.Axe().run(page).response
    assert [violation["id"] for violation in found["violations"]] == []
    assert len(found["passes"]) > 20
    page.close()
