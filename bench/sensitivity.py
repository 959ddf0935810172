"""How far what the paper leaves open moves its claims: assumptions changed one at a time, and three pairs.

    python -m bench.sensitivity --out docs/claims --azure ../shared/data/traces/azure_code_2023.csv.gz

Scores the end-to-end claims and the ablations under every assumption of ``bench.unstated``, baseline and system alike,
and tells whether the paper's value lies between the least and the most, changes below 10 % by the five points that
scores allow. The experiments are those of ``python -m sim claims`` at two loads. Writes ``sensitivity.csv``,
``sensitivity_ranges.csv`` and a figure of the claims that are farthest from the paper; runs that are there are not done
again.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.unstated import AS_IT_IS, ASSUMPTIONS, FREE_LINK, Assumption, with_trace
from conf.paper.catalog import read_catalog
from conf.paper.collect import collect
from conf.paper.score import POINTS, SMALL_CHANGE, Scored, change_error, is_near, score
from conf.parallel import Parallel, side_by_side

TWO = "loads=[0.9,1.3]"
SHORTER: Mapping[str, tuple[str, ...]] = {
    "mirage/fig8_c1": (TWO,),
    "mirage/fig8_c2": (TWO,),
    "mirage/fig9": (TWO,),
    "mirage/fig12": (TWO,),
    "mirage/fig13": (TWO,),
    "mirage/fig14": (TWO, "compare=[recompute,pie,mirage]"),
}
FOR_ALL = ("parallel.jobs=1", "output.figures=false")

N_FARTHEST = 10
"""Claims that are drawn."""

NO_PUNCTUATION = str.maketrans("", "", ",:;%()'")


TBT = "TBT definition"
HEADER = ("claim", "text", "paper_percent", "assumption", "changed_to", "ours_percent", "error")
RANGES = (*HEADER[:3], "as_it_is_percent", "least_percent", "most_percent", "paper_inside", "inside_if_copies_cost",
          "nearest", "nearest_percent", "near_under")  # fmt: skip


def scored_under(assumption: Assumption, root: Path) -> list[Scored]:
    """Score the claims under one assumption."""
    folder = root / f"{assumption.kind} {assumption.text}".replace(" ", "_").translate(NO_PUNCTUATION)
    told = {
        name: collect(name, folder, [*FOR_ALL, *SHORTER.get(name, ()), *assumption.overrides_of(name)])
        for name in assumption.experiments
    }
    entries = [entry for entry in read_catalog("mirage") if set(entry.experiments) & set(told)]
    return score([entry for entry in entries if entry.check in ("e2e", "ablation") and entry.values], told)


def rows(found: Sequence[tuple[Assumption, list[Scored]]]) -> Iterator[tuple[str, ...]]:
    """A row for each claim and each assumption that may move it, the farthest first; other definitions of TBT below."""
    errors = {each.entry.id: each.error or 0.0 for each in found[0][1]}
    for name in sorted(errors, key=lambda name: -errors[name]):
        for assumption, scored in found:
            for each in scored:
                if each.entry.id == name and each.ours is not None:
                    yield _row(each, assumption.kind, assumption.text, each.ours.values[0], each.error or 0.0)
                    for metric, value in _beside(each):
                        error = change_error(value, each.entry.changes[0])
                        yield _row(each, TBT, f"{metric}; {assumption.kind}: {assumption.text}", value, error)


def _beside(each: Scored) -> Iterator[tuple[str, float]]:
    """The claim by the other definitions of TBT, if it is one."""
    assert each.ours is not None
    if each.entry.ours is not None and each.entry.ours.change[:1] == ("max_gap_p99",) and each.entry.check == "e2e":
        yield from (each.ours.beside or {}).items()


def ranges(table: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """For each claim the least and the most of ours, and whether the paper's value lies between them.

    Beside that: whether it does so where copies take their time, under which assumption ours comes nearest, and
    under how many of them it is near (an error of a quarter, or five points below 10 %).
    """
    for claim in dict.fromkeys(row[0] for row in table):
        own = [row for row in table if row[0] == claim]
        paper, values = float(own[0][2]), [float(row[5]) for row in own]
        charged = [float(row[5]) for row in own if FREE_LINK.text.partition(" (")[0] not in row[4]]
        nearest = min(own, key=lambda row: float(row[6]))
        n_near = sum(is_near(float(row[5]) / 100, paper / 100) for row in own)
        yield (
            *own[0][:3],
            own[0][5],
            f"{min(values):+.1f}",
            f"{max(values):+.1f}",
            *("yes" if is_inside(paper / 100, [value / 100 for value in each]) else "no" for each in (values, charged)),
            f"{nearest[3]}: {nearest[4]}",
            nearest[5],
            f"{n_near} of {len(own)}",
        )


def is_inside(paper: float, ours: Sequence[float]) -> bool:
    """Whether the paper's change lies among ours; one below 10 % may lie five points outside, as in its score."""
    slack = POINTS if abs(paper) < SMALL_CHANGE else 0.0
    return min(ours) - slack <= paper <= max(ours) + slack


def _row(each: Scored, kind: str, text: str, ours: float, error: float) -> tuple[str, ...]:
    paper = f"{100 * each.entry.changes[0]:+.1f}"
    return (
        each.entry.id,
        each.entry.text,
        paper,
        kind,
        text,
        f"{100 * ours:+.1f}",
        f"{error:.3f}",
    )


def main(arguments: Sequence[str]) -> int:
    """Run every assumption, write the tables and the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for sensitivity.csv and sensitivity.png")
    parser.add_argument("--root", type=Path, default=Path("outputs/sensitivity"), help="folder for runs")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds of assumption; all if it is left out")
    parser.add_argument("--azure", type=Path, help="Azure's code trace of 2023; without it only what is fitted to it")
    parser.add_argument("--jobs", type=int, help="assumptions at a time; as many as there are cores if it is left out")
    given = parser.parse_args(arguments)
    swept = with_trace(ASSUMPTIONS, given.azure.resolve()) if given.azure else ASSUMPTIONS
    chosen = [each for each in swept if not given.only or each.kind in (AS_IT_IS.kind, *given.only)]
    under = side_by_side(partial(scored_under, root=given.root), chosen, Parallel(jobs=given.jobs))
    table = list(rows(list(zip(chosen, under, strict=True))))
    given.out.mkdir(parents=True, exist_ok=True)
    _write(given.out / "sensitivity.csv", [HEADER, *table])
    spans = list(ranges(table))
    _write(given.out / "sensitivity_ranges.csv", [RANGES, *spans])
    for nth, where in ((6, ""), (7, ", and where copies take their time")):
        n_inside = sum(row[nth] == "yes" for row in spans)
        print(f"the paper's value lies within the range of {n_inside} of {len(spans)} claims{where}")
    draw([row for row in table if row[3] != TBT], given.out / "sensitivity.png")
    return 0


def _write(path: Path, lines: Sequence[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


def draw(table: Sequence[tuple[str, ...]], path: Path) -> None:
    """Draw a panel a claim: ours under every assumption, named once a row of panels; the paper's value as a line."""
    from traces.plots.style import BLUE, VERMILION, panels

    claims = list(dict.fromkeys(row[0] for row in table))[:N_FARTHEST]
    names = list(dict.fromkeys(f"{row[3]}: {row[4]}" for row in table if row[0] in claims))[::-1]
    n_columns = 5
    n_rows = -(-len(claims) // n_columns)
    title = "Claims under changed assumptions, % (the line: the paper; no mark: it does not concern the claim)"
    with panels(n_rows, n_columns, path, title, panel_inches=(2.6, 0.8 + 0.14 * len(names))) as (_, axes):
        for ax in axes.flat[len(claims) :]:
            ax.set_visible(False)
        for nth, (ax, claim) in enumerate(zip(axes.flat, claims, strict=False)):
            own = [row for row in table if row[0] == claim]
            at = [names.index(f"{row[3]}: {row[4]}") for row in own]
            ax.plot([float(row[5]) for row in own], at, "o", color=BLUE, markersize=4)
            ax.axvline(float(own[0][2]), color=VERMILION)
            ax.set_title(f"{claim}: {own[0][1].partition(' (')[0]}", fontsize=8)
            ax.set_yticks(range(len(names)), names if nth % n_columns == 0 else [], fontsize=7)
            ax.set_ylim(-1, len(names))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
