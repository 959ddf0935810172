# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from traces.page.svg import shorter, svg_of

points = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=40)


def drawn(data: str) -> list[tuple[int, int]]:
    """The corners of a path in tenths, as an SVG renderer finds them; SVG 1.1, section 8.3."""
    x = y = 0
    found: list[tuple[int, int]] = []
    for command, first, second in re.findall(r"([Mlhv])(-?[\d.]+)(?: (-?[\d.]+))?", data):
        step = round(float(first) * 10)
        match command:
            case "M":
                x, y = step, round(float(second) * 10)
            case "h":
                x += step
            case "v":
                y += step
            case _:
                x, y = x + step, y + round(float(second) * 10)
        found.append((x, y))
    return found


@given(points)
def test_a_shorter_path_goes_through_the_same_corners(corners: list[tuple[int, int]]) -> None:
    told = "M" + " L".join(f" {x / 10} {y / 10} \n" for x, y in corners)
    short = drawn(shorter(told))
    assert short[0] == corners[0]
    assert short[-1] == corners[-1]
    assert len(short) <= len(corners)
    left = iter(corners)
    assert all(corner in left for corner in short)  # in this order
    assert {max(axis) for axis in zip(*short, strict=True)} >= {max(y for _, y in corners)}


def test_names_in_a_figure_are_its_own_and_its_texts_are_texts() -> None:
    def draw(ax: Axes) -> None:
        ax.fill_between([0, 1], [0, 0], [1, 2], hatch="//")
        ax.set_xlabel("a < b")

    one, two = (svg_of(draw, key=key, title="x & <y>") for key in ("one", "two"))
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', one)) <= ids[0]
    assert ">a &lt; b</text>" in one
    assert ">x &amp; &lt;y&gt;</title>" in one
    assert "http" not in one
