"""Figures as SVG that stands in a page: text is text, no address, no name that another figure has, few digits."""

# matplotlib types its functions but not their keyword arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from traces.plots.style import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INCHES = (4.8, 2.9)
"""Of a figure: at 96 pixels an inch little wider than a phone, so that its text can be read there."""

MARGINS: Mapping[str, float] = {"left": 0.165, "right": 0.955, "bottom": 0.17, "top": 0.97}
"""Shares of the figure, wide enough for every label here. Looking for the best takes as long as drawing."""

_STYLE: Mapping[str, Any] = {
    **STYLE,
    "figure.constrained_layout.use": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "page",
}

_LEFT_OUT = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_ID = re.compile(r'\sid="([^"]+)"')
_REFERENCE = re.compile(r'(?:url\(|href=")#([^)"]+)')
_FONT = re.compile(r"font: [^;\"]*?([\d.]+)px [^;\"]*|; font-family: [^;\"]*")
_PATH = re.compile(r'(<path (?:id="[^"]*" )?d=")([MLz\d\s.-]*)"')
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_NAMESPACE = re.compile(r'\sxmlns(?::\w+)?="[^"]*"')


def svg_of(draw: Callable[[Axes], None], *, key: str, title: str, inches: tuple[float, float] = INCHES) -> str:
    """Draw one panel as an ``svg`` element.

    Args:
        draw: draws it.
        key: of this figure alone on its page.
        title: what it shows, in words, for those who do not see it.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = dict(_STYLE)
    written = StringIO()
    with rc_context(style):
        figure = Figure(figsize=inches)
        ax = figure.subplots()
        figure.subplots_adjust(**MARGINS)
        draw(ax)
        figure.savefig(written, format="svg")
    return _for_a_page(written.getvalue(), key, title)


def _for_a_page(svg: str, key: str, title: str) -> str:
    svg = _NAMESPACE.sub("", _LEFT_OUT.sub("", svg)).replace("xlink:href", "href")
    wanted = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda found: f' id="{key}-{found[1]}"' if found[1] in wanted else "", svg)
    svg = re.sub(r"(url\(|href=\")#", rf"\1#{key}-", svg)
    svg = _FONT.sub(lambda found: f"font-size: {found[1]}px" if found[1] else "", svg)
    svg = _PATH.sub(lambda found: f'{found[1]}{shorter(found[2])}"', svg)
    svg = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), svg)
    (box,) = re.findall(r'viewBox="[^"]*"', svg)
    inside = re.sub(r"^.*?<svg[^>]*>", "", svg, count=1, flags=re.DOTALL)
    opening = f'<svg role="img" aria-labelledby="{key}-title" {box}><title id="{key}-title">{escape(title)}</title>'
    return opening + re.sub(r"\n\s*", "\n", inside).strip()


def shorter(data: str) -> str:
    """Write straight lines from point to point as steps of tenths; what goes on in one direction is one step."""
    written: list[str] = []
    at = (0, 0)
    steps: list[tuple[int, int]] = []
    for command, x, y in re.findall(r"([MLz])\s*(?:(-?[\d.]+) (-?[\d.]+))?", data):
        if command == "L":
            point = round(float(x) * 10), round(float(y) * 10)
            steps.append((point[0] - at[0], point[1] - at[1]))
            at = point
            continue
        written += _written(steps)
        steps = []
        if command == "M":
            at = round(float(x) * 10), round(float(y) * 10)
        written.append("z" if command == "z" else f"M{_tenths(at[0])} {_tenths(at[1])}")
    return "".join([*written, *_written(steps)])


def _written(steps: list[tuple[int, int]]) -> list[str]:
    joined: list[tuple[int, int]] = []
    for dx, dy in steps:
        last_dx, last_dy = joined[-1] if joined else (1, 1)
        if (dx == last_dx == 0 and dy * last_dy >= 0) or (dy == last_dy == 0 and dx * last_dx >= 0):
            joined[-1] = last_dx + dx, last_dy + dy
        else:
            joined.append((dx, dy))
    return [
        f"h{_tenths(dx)}" if dy == 0 else f"v{_tenths(dy)}" if dx == 0 else f"l{_tenths(dx)} {_tenths(dy)}"
        for dx, dy in joined
        if dx or dy
    ]


def _tenths(n: int) -> str:
    return f"{n / 10:g}"
