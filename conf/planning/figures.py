"""Figures of an answer as inline SVG: lines and marks that differ in form as well as in colour."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from conf.planning import words
from conf.planning.answer import Answer

WIDTH, LEFT, RIGHT, ROW = 640, 190, 20, 30
BLUE, ORANGE, GREY = "#0072b2", "#b34700", "#555"
"""Blue and a dark orange of Okabe and Ito's palette: told apart by the colour-blind, 4.5 : 1 on white."""


def rates_figure(answer: Answer) -> str:
    """For each system the rate that it keeps, with its interval."""
    rows = [(each.system.name, each.rate.mean, max(0.0, each.rate.low), each.rate.high) for each in answer.rates]
    return _intervals(rows, "requests/s up to which the promise is kept, with 95 % intervals over seeds", zero=True)


def reliefs_figure(answer: Answer) -> str:
    """What a quarter more of each resource gives."""
    rows = [
        (words.relief_name(each), 100 * each.gain.mean, 100 * each.gain.low, 100 * each.gain.high)
        for each in answer.reliefs
    ]
    caption = f"% more requests/s with a quarter more of it, under {answer.recommended.name}"
    return _intervals(rows, caption, zero=True)


def _intervals(rows: Sequence[tuple[str, float, float, float]], caption: str, *, zero: bool) -> str:
    low = min([0.0 if zero else rows[0][2], *(row[2] for row in rows)])
    high = max(row[3] for row in rows) or 1.0
    height = ROW * len(rows) + 40

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low or 1.0) * (WIDTH - LEFT - RIGHT)

    parts: list[str] = []
    for index, (name, mean, least, most) in enumerate(rows):
        y = ROW * index + 20
        parts.append(f'<text x="{LEFT - 10}" y="{y + 5}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<line x1="{x(least):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}" stroke="{GREY}" />')
        parts.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5" fill="{BLUE}" />')
    parts += _axis(low, high, x, ROW * len(rows) + 10)
    return _figure(parts, height, caption, "; ".join(f"{name}: {mean:.3g}" for name, mean, _, _ in rows))


def curve_figure(answer: Answer) -> str:
    """Shares of the requests that get what is promised, over the rate."""
    names = list(answer.curve[0][1])
    low, high = answer.curve[0][0], answer.curve[-1][0]
    height, top, bottom = 300, 20, 250

    def x(rate: float) -> float:
        return 60 + (rate - low) / (high - low or 1.0) * (WIDTH - 60 - 150)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    promised = y(answer.asked.slo.share)
    parts = [f'<line x1="60" x2="{x(high):.1f}" y1="{promised:.1f}" y2="{promised:.1f}" stroke="{GREY}" />']
    parts.append(f'<text x="{x(high) + 8:.1f}" y="{promised:.1f}">promised</text>')
    parts += [f'<text x="52" y="{y(share) + 5:.1f}" text-anchor="end">{share:g}</text>' for share in (0, 0.5, 1)]
    last_y = -100.0
    for name, colour, dash in zip(names, (BLUE, ORANGE), ("", ' stroke-dasharray="7 4"'), strict=False):
        points = " ".join(f"{x(rate):.1f},{y(shares[name]):.1f}" for rate, shares in answer.curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"{dash} />')
        end = y(answer.curve[-1][1][name]) + 5
        end = end if abs(end - last_y) > 16 else last_y + 18
        parts.append(f'<text x="{x(high) + 8:.1f}" y="{end:.1f}" fill="{colour}">{escape(name)}</text>')
        last_y = end
    parts += _axis(low, high, x, bottom + 10)
    told = "; ".join(
        f"{rate:.3g}/s: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}"
        for rate, shares in answer.curve
    )
    return _figure(parts, height, "share of the requests that get what is promised, over requests/s", told)


def _axis(low: float, high: float, x: object, y: float) -> list[str]:
    assert callable(x)
    marks = [low + (high - low) * part / 4 for part in range(5)]
    return [f'<text x="{x(mark):.1f}" y="{y + 18}" text-anchor="middle">{mark:.3g}</text>' for mark in marks]


def _figure(parts: Sequence[str], height: int, caption: str, told: str) -> str:
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(told)}" font-size="13" font-family="system-ui, sans-serif" fill="#1a1a1a">'
        f"{''.join(parts)}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )
