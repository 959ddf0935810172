"""The answer as one HTML page: no script, no address outside, figures as inline SVG."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from conf.planning import words
from conf.planning.answer import Answer
from conf.planning.figures import curve_figure, rates_figure, reliefs_figure
from conf.planning.screen import filled

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; max-width: 60rem;
  padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid #0072b2; padding: .5rem 1rem; background: #f3f7fa; font-size: 1.1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .25rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ccc; text-align: right; white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; min-width: 4rem; }
th:first-child { text-align: left; position: sticky; left: 0; background: #fff; } tbody th { font-weight: 400; }
figure { margin: 1rem 0; break-inside: avoid; } figcaption { font-size: .9rem; color: #444; }
svg { display: block; width: 100%; max-width: 36rem; height: auto; }
pre { overflow-x: auto; background: #f6f6f6; padding: .75rem; font-size: .8rem; }
@media print {
  html { font-size: 13px; } body { max-width: none; font-size: 1rem; } th:first-child { position: static; }
  .scroll { overflow: visible; break-inside: avoid; }
  h2 { break-after: avoid; } svg { max-width: 28rem; } pre { white-space: pre-wrap; }
}
"""


def page(answer: Answer) -> str:
    """Write the page."""
    title = f"Does lending pay? {words.what(answer)}"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            *_body(answer),
            "</main></body></html>",
            "",
        ]
    )


def _body(answer: Answer) -> Iterator[str]:
    yield f"<h1>Does it pay to lend weights to the KV cache?</h1><p>{escape(words.what(answer))}.</p>"
    yield f"<p>{escape(words.requests(answer))}.</p><p>Promise: {escape(answer.asked.slo.label)}.</p>"
    yield f'<p class="verdict">{escape(words.verdict(answer))}</p>'
    told = [" ".join(words.cost(answer)), words.link(answer), words.binds(answer), words.wanted(answer)]
    yield from (f"<p>{escape(line)}</p>" for line in [*told, *words.oddities(answer)] if line)
    yield "<h2>Up to which rate</h2>"
    yield rates_figure(answer)
    yield _table("Rates up to which the promise is kept", words.RATE_HEADS, words.rate_rows(answer))
    if answer.curve:
        yield curve_figure(answer)
    yield "<h2>What it buys and costs</h2>"
    caption = f"At the rates that {answer.reference.name} keeps"
    yield _table(caption, words.COST_HEADS_LONG, words.cost_rows(answer))
    if answer.reliefs:
        yield "<h2>What binds</h2>"
        yield reliefs_figure(answer)
    yield "<h2>The models</h2>"
    yield _table("As they are served", words.MODEL_HEADS, map(words.model_cells, answer.models))
    yield "<h2>Configuration</h2>"
    config = json.dumps(answer.run.config, indent=1, default=str)
    yield f'<details><summary>Every key</summary><pre tabindex="0">{escape(config)}</pre></details>'


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads, rows = filled(heads, rows)
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
