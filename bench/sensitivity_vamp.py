"""What VAMP's paper leaves open and how far it moves its end-to-end claims: one assumption changed at a time.

    python -m bench.sensitivity_vamp --out docs/claims

Loads, lengths and times that the paper does not publish (see conf/sessions) are given other values, for all systems
alike, and the claims of the experiments that they concern are scored again, one seed each. Writes
``vamp_sensitivity.csv``; runs that are there are not done again.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conf.paper.catalog import read_catalog
from conf.paper.claims import found, said
from conf.paper.collect import collect
from conf.paper.score import Scored, score
from conf.parallel import Parallel, side_by_side

FOR_ALL = ("parallel.jobs=1", "output.figures=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Experiments that share a load, of which as little is run as the claims need.

    Attributes:
        experiments: each with what makes it shorter.
        claims: that are scored.
    """

    experiments: tuple[tuple[str, tuple[str, ...]], ...]
    claims: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Another answer to something that the paper leaves open.

    Attributes:
        overrides: for each experiment of the load, in its order; one for all of them if there is only one.
    """

    kind: str
    text: str
    overrides: tuple[tuple[str, ...], ...] = ((),)


TWO_H100, FOUR_H200 = "sessions.in_house_h100", "sessions.in_house_h200"

IN_HOUSE = Load(
    experiments=(
        (
            "vamp/fig9a",
            ("grid.sessions={in_house_h100: {n_sessions: [16, 28]}}", "compare=[recompute,vamp_20,vamp_25]"),
        ),
        (
            "vamp/fig9b",
            ("grid.sessions={in_house_h200: {n_sessions: [28, 32]}}", "compare=[recompute,vamp_15,vamp_20]"),
        ),
        ("vamp/decisions", ("compare=[vamp_20]", "grid.sessions={in_house_h200: {n_sessions: [32]}}")),
    ),
    claims=("V034", "V035", "V037", "V039", *(f"V{number:03}" for number in (*range(43, 48), *range(51, 56)))),
)


def _sizes(h100: tuple[int, int], h200: tuple[int, int]) -> tuple[tuple[str, ...], ...]:
    """Another first prompt and what turns add, by platform; sessions end as long as they do."""
    small, large = (
        (f"{name}.first_tokens={first}", f"{name}.added_tokens={added}")
        for name, (first, added) in ((TWO_H100, h100), (FOUR_H200, h200))
    )
    return small, large, large


def _answers(n_tokens: int) -> tuple[tuple[str, ...], ...]:
    """Answers of so many tokens; what turns add makes sessions end as long as they do."""
    small, large = (
        (f"{name}.output_tokens={n_tokens}", f"{name}.added_tokens={(total - 12 * n_tokens - first) // 11}")
        for name, total, first in ((TWO_H100, 74_000, 6_000), (FOUR_H200, 254_000, 20_000))
    )
    return small, large, large


def _each(setting: str) -> tuple[tuple[str, ...], ...]:
    return (f"{TWO_H100}.{setting}",), (f"{FOUR_H200}.{setting}",), (f"{FOUR_H200}.{setting}",)


def _all(*overrides: str) -> tuple[tuple[str, ...], ...]:
    return (overrides,)


SWE, LMCACHE = "sessions.swe_replay", "sessions.lmcache"

REPLAY = Load(
    experiments=(("vamp/fig10a", ("grid.seed=[0]", "compare=[recompute,vamp_15]")),),
    claims=tuple(f"V{number:03}" for number in range(2, 15)),
)
HOUR = Load(
    experiments=(("vamp/lmcache128", ("grid.seed=[0]", "compare=[recompute,vamp_15]")),),
    claims=("V025", "V026", "V027", "V028", "V031", "V032"),
)

SLOW_REDUCE = "mix.experts.ranks.reduce_bytes_per_s=9_450_000_000"

ASSUMPTIONS: tuple[tuple[Load, tuple[Assumption, ...]], ...] = (
    (
        IN_HOUSE,
        (
            Assumption(kind="as it is", text="the common assumptions"),
            Assumption(
                kind="first prompt", text="85 % of the last context", overrides=_sizes((62_900, 790), (215_900, 3_136))
            ),
            Assumption(kind="thinking", text="5 s", overrides=_each("think_s=5")),
            Assumption(kind="starts", text="evenly over 300 s", overrides=_each("start_within_s=300")),
            Assumption(kind="answers", text="100 tokens", overrides=_answers(100)),
            Assumption(kind="answers", text="600 tokens", overrides=_answers(600)),
            Assumption(kind="declared output", text="1024 tokens", overrides=_each("declared_tokens=1024")),
            Assumption(
                kind="all-reduce over the host", text="9.45 GB/s, 2 x H100 only", overrides=((SLOW_REDUCE,), (), ())
            ),
        ),
    ),
    (
        REPLAY,
        (
            Assumption(kind="as it is", text="the common assumptions"),
            Assumption(kind="first prompt", text="as fitted", overrides=_all(f"{SWE}.first_scale=1")),
            Assumption(kind="answers", text="3 times the fit's", overrides=_all(f"{SWE}.output_scale=3")),
            Assumption(kind="thinking", text="as fitted", overrides=_all(f"{SWE}.think_scale=1")),
            Assumption(kind="thinking", text="30 times the fit's", overrides=_all(f"{SWE}.think_scale=30")),
            Assumption(kind="all-reduce over the host", text="9.45 GB/s", overrides=_all(SLOW_REDUCE)),
        ),
    ),
    (
        HOUR,
        (
            Assumption(kind="as it is", text="the common assumptions"),
            Assumption(kind="starts", text="all at once", overrides=_all(f"{LMCACHE}.start_within_s=null")),
            Assumption(kind="starts", text="evenly over 600 s", overrides=_all(f"{LMCACHE}.start_within_s=600")),
        ),
    ),
)


def scored_under(of: tuple[Load, Assumption], root: Path) -> list[Scored]:
    """Score the claims of a load under one assumption."""
    load, assumption = of
    folder = root / f"{assumption.kind} {assumption.text}".replace(" ", "_")
    changes = assumption.overrides * (len(load.experiments) if len(assumption.overrides) == 1 else 1)
    told = {
        name: collect(name, folder, [*FOR_ALL, *shorter, *more])
        for (name, shorter), more in zip(load.experiments, changes, strict=True)
    }
    return score([entry for entry in read_catalog("vamp") if entry.id in load.claims], told)


def rows(of: tuple[Load, Assumption], scored: Sequence[Scored]) -> Iterator[tuple[str, ...]]:
    """A row for each claim."""
    _, assumption = of
    for each in scored:
        error = "" if each.error is None else f"{each.error:.2f}"
        direction = "" if each.is_right is None else ("right" if each.is_right else "wrong")
        ours = (found(each), error, direction)
        yield each.entry.id, each.entry.text, said(each.entry), assumption.kind, assumption.text, *ours


def main(arguments: Sequence[str]) -> int:
    """Run every assumption and write the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for vamp_sensitivity.csv")
    parser.add_argument("--root", type=Path, default=Path("outputs/sensitivity_vamp"), help="folder for runs")
    parser.add_argument("--jobs", type=int, default=None, help="assumptions side by side; default: one a core")
    given = parser.parse_args(arguments)
    wanted = [(load, assumption) for load, assumptions in ASSUMPTIONS for assumption in assumptions]
    under = side_by_side(partial(scored_under, root=given.root), wanted, Parallel(jobs=given.jobs))
    table = [row for of, scored in zip(wanted, under, strict=True) for row in rows(of, scored)]
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "vamp_sensitivity.csv").open("w", newline="", encoding="utf-8") as file:
        header = ("claim", "text", "paper", "assumption", "changed_to", "ours", "error", "direction")
        csv.writer(file).writerows([header, *sorted(table)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
