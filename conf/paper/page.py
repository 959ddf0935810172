"""The claims as one page that needs no other file: a table, and the figures of the experiments below it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from conf.paper.score import Scored

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .25rem .5rem; vertical-align: top }
tr { border-bottom: 1px solid #ddd } td.n { text-align: right; white-space: nowrap } small { color: #666 }
.right { color: #00664b } .wrong, .open, .unscored { color: #b03a00; font-weight: 600 } .refuted { color: #6b4a9b }
img { max-width: 100% } figure { margin: 2rem 0 } figcaption { font-weight: 600 }
pre { background: #f5f5f5; padding: 1rem }
"""


def page(scored: Sequence[Scored], root: Path, summary: str) -> str:
    """Write the page.

    Args:
        root: below it lie the experiments, each with the figure that is put into the page.
    """
    experiments = dict.fromkeys(name for each in scored for name in each.entry.experiments)
    figures = "\n".join(_figure(name, root / name / "figure.png") for name in experiments)
    rows = "\n".join(_row(each) for each in scored)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>The papers' claims and ours</title><style>{STYLE}</style>
<h1>The papers' claims and ours</h1>
<p>A reduction or an increase is compared by what remains: error = |ln((1 + ours) / (1 + paper))|, in points below 10 %.
The second line of a row says what was compared and what is assumed.</p>
<pre>{escape(summary)}</pre>
<table><tr><th>claim</th><th></th><th>paper</th><th>ours</th><th>least, most</th><th>error</th><th>verdict</th></tr>
{rows}
</table>
{figures}
</html>
"""


def _row(each: Scored) -> str:
    from conf.paper.claims import evidence, found, said

    entry, ours = each.entry, each.ours
    spread = ""
    if ours is not None and ours.low is not None and ours.high is not None:
        spread = f"{100 * ours.low:+.0f}%, {100 * ours.high:+.0f}%"
    beside: Mapping[str, float] = {} if ours is None or ours.beside is None else ours.beside
    notes = [
        entry.source,
        "" if ours is None else ours.definition,
        "; ".join(f"{name} {100 * value:+.1f}%" for name, value in beside.items()),
        entry.assumes,
        f"{each.verdict}: {shown}" if (shown := evidence(entry)) else "",
    ]
    error = "" if each.error is None else f"{each.error:.2f}"
    links = " ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in entry.experiments)
    return (
        f'<tr id="{entry.id}"><td>{entry.id}</td>'
        f"<td>{escape(entry.text)}<br><small>{escape('. '.join(filter(None, notes)))}. {links}</small></td>"
        f'<td class="n">{escape(said(entry))}</td><td class="n">{escape(found(each))}</td><td class="n">{spread}</td>'
        f'<td class="n">{error}</td><td class="{each.verdict.split()[0]}">{escape(each.verdict)}</td></tr>'
    )


def _figure(name: str, path: Path) -> str:
    if not path.exists():
        return ""
    data = b64encode(path.read_bytes()).decode()
    return (
        f'<figure id="{escape(name)}"><figcaption>{escape(name)}</figcaption>'
        f'<img alt="{escape(name)}" src="data:image/png;base64,{data}"></figure>'
    )
