"""The papers' figures by name: each draws what an experiment came to, in the paper's form, and gives its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from conf.paper.drawn import Drawn, Numbers
from conf.paper.mirage_arithmetic import fig1b, fig4, fig5a, fig5b, table1
from conf.paper.mirage_beyond import agents, blocked, moved, phases, starvation
from conf.paper.mirage_runs import bars, fig1a, fig15, fig16, fig17, frontier, rates
from conf.paper.vamp_arithmetic import vamp_arithmetic

FIGURES: Mapping[str, Callable[[Drawn], Numbers]] = {
    "rates": rates,
    "bars": bars,
    "fig1a": fig1a,
    "fig1b": fig1b,
    "fig4": fig4,
    "fig5a": fig5a,
    "fig5b": fig5b,
    "fig15": fig15,
    "fig16": fig16,
    "fig17": fig17,
    "frontier": frontier,
    "table1": table1,
    "agents": agents,
    "blocked": blocked,
    "moved": moved,
    "phases": phases,
    "starvation": starvation,
    "vamp_arithmetic": vamp_arithmetic,
}
