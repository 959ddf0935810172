"""Figures of an answer as inline SVG: lines and marks that differ in form as well as in colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10

from conf.planning import words
from conf.planning.answer import Answer

WIDTH, LEFT, RIGHT, ROW = 440, 176, 20, 26
"""Narrow, with text of 13: on a phone, 360 wide, that is still 10."""

CHARACTER = 7.5
"""Width of one of such a text, on average and a little more."""

BLUE, ORANGE, GREY, PALE = "#0072b2", "#b34700", "#555", "#bbb"
"""Blue and a dark orange of Okabe and Ito's palette: told apart by the colour-blind, 4.5 : 1 on white."""

N_MARKS = 5
"""Steps of an axis at most; there are at least two."""

Place = Callable[[float], float]


def rates_figure(answer: Answer) -> str:
    """For each system the rate that it keeps, with its interval."""
    rows = [(each.system.name, each.rate.mean, max(0.0, each.rate.low), each.rate.high) for each in words.shown(answer)]
    return _intervals(rows, "requests/s up to which the promise is kept, with 95 % intervals over seeds")


def reliefs_figure(answer: Answer) -> str:
    """What a quarter more of each resource gives."""
    rows = [
        (words.relief_name(each), 100 * each.gain.mean, 100 * each.gain.low, 100 * each.gain.high)
        for each in answer.reliefs
    ]
    caption = f"% more requests/s with a quarter more of it, under {answer.recommended.name}, with 95 % intervals"
    return _intervals(rows, caption)


def _intervals(rows: Sequence[tuple[str, float, float, float]], caption: str) -> str:
    low = min(0.0, *(row[2] for row in rows))
    high = max(row[3] for row in rows) or 1.0
    bottom = ROW * len(rows) + 4

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low or 1.0) * (WIDTH - LEFT - RIGHT)

    parts = _axis(low, high, x, bottom)
    parts.append(f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{bottom}" stroke="{GREY}" />')
    for index, (name, mean, least, most) in enumerate(rows):
        y = ROW * index + ROW // 2
        parts.append(f'<text x="{LEFT - 10}" y="{y + 5}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<line x1="{x(least):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}" stroke="{GREY}" />')
        parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5" fill="{BLUE}" />')
    return _figure(parts, bottom + 28, caption, "; ".join(f"{name}: {mean:.3g}" for name, mean, _, _ in rows))


def curve_figure(answer: Answer) -> str:
    """Shares of the requests that get what is promised, over the rate."""
    names = list(answer.curve[0][1])
    low, high = answer.curve[0][0], answer.curve[-1][0]
    top, bottom = 12, 200
    labelled = 16 + CHARACTER * max(len(f"- - {name}") for name in names)

    def x(rate: float) -> float:
        return 36 + (rate - low) / (high - low or 1.0) * (WIDTH - 36 - labelled)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    parts = _axis(low, high, x, bottom)
    promised = y(answer.asked.slo.share)
    parts.append(f'<line x1="36" x2="{x(high):.1f}" y1="{promised:.1f}" y2="{promised:.1f}" stroke="{GREY}" />')
    parts += [f'<text x="30" y="{y(share) + 5:.1f}" text-anchor="end">{share:g}</text>' for share in (0, 0.5, 1)]
    labels = [(promised, f"promised: {answer.asked.slo.share:g}", GREY)]
    for name, colour, dash in zip(names, (BLUE, ORANGE), ("", ' stroke-dasharray="7 4"'), strict=False):
        points = " ".join(f"{x(rate):.1f},{y(shares[name]):.1f}" for rate, shares in answer.curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"{dash} />')
        labels.append((y(answer.curve[-1][1][name]), f"{'- - ' if dash else ''}{name}", colour))
    parts += _labels(labels, x(high) + 8)
    told = "; ".join(
        f"{rate:.3g}/s: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}"
        for rate, shares in answer.curve
    )
    return _figure(parts, bottom + 28, "share of the requests that get what is promised, over requests/s", told)


def _labels(labels: Sequence[tuple[float, str, str]], x: float) -> list[str]:
    """Names at the ends of lines, moved down where they would lie on each other."""
    parts: list[str] = []
    last_y = float("-inf")
    for at, name, colour in sorted(labels):
        last_y = max(at + 4, last_y + 16)
        parts.append(f'<text x="{x:.1f}" y="{last_y:.1f}" fill="{colour}">{escape(name)}</text>')
    return parts


def _axis(low: float, high: float, x: Place, y: float) -> list[str]:
    line = f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}" stroke="{PALE}" />'
    ticks = [
        f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{y}" y2="{y + 5}" stroke="{GREY}" />'
        f'<text x="{x(mark):.1f}" y="{y + 20}" text-anchor="middle">{mark:g}</text>'
        for mark in marks(low, high)
    ]
    return [line, *ticks]


def marks(low: float, high: float) -> list[float]:
    """Round numbers within ``low <= high``: multiples of 1, 2 or 5 times a power of ten, ``N_MARKS`` steps at most."""
    rough = (high - low) / N_MARKS or 1.0
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(n * step, 12) for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def _figure(parts: Sequence[str], height: float, caption: str, told: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(told)}" font-size="13" font-family="system-ui, sans-serif" fill="#1a1a1a">'
        f"{''.join(parts)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )
