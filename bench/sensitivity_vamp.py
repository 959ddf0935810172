"""What VAMP's paper leaves open and how far it moves its end-to-end claims: one assumption changed at a time.

    python -m bench.sensitivity_vamp --out docs/claims

Loads, lengths and times that the paper does not publish (see conf/sessions) are given other values, for all systems
alike, a few of them together, and the claims that they concern are scored again, one seed each. Writes
``vamp_sensitivity.csv``, of some loads alone beside the rows that it has of the others; runs that are there are not
done again.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conf.paper.catalog import read_catalog
from conf.paper.claims import found, said
from conf.paper.collect import collect
from conf.paper.score import Scored, score
from conf.parallel import Parallel, side_by_side

HEADER = ("claim", "text", "paper", "assumption", "changed_to", "ours", "error", "direction")
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
    """Another answer to something that the paper leaves open; ``overrides``: for every experiment of the load."""

    kind: str
    text: str
    overrides: tuple[str, ...] = ()


H100, H200 = "sessions.in_house_h100", "sessions.in_house_h200"
SWE, CLOSED, LMCACHE = "sessions.swe_replay", "sessions.swe_closed", "sessions.lmcache"

TWO_H100 = Load(
    experiments=(("vamp/fig9a", ("grid.sessions={in_house_h100: {n_sessions: [16, 20, 24, 28]}}",)),),
    claims=tuple(f"V{number:03}" for number in range(34, 43)),
)
FOUR_H200 = Load(
    experiments=(
        ("vamp/fig9b", ("grid.sessions={in_house_h200: {n_sessions: [16, 28, 32, 36]}}",)),
        ("vamp/decisions", ("compare=[vamp_20]",)),
    ),
    claims=tuple(f"V{number:03}" for number in range(43, 57)),
)
REPLAY = Load(
    experiments=(("vamp/fig10a", ("grid.seed=[0]",)),),
    claims=tuple(f"V{number:03}" for number in (*range(2, 16), *range(57, 61))),
)
SIX_HOURS = Load(
    experiments=(("vamp/fig6", ("grid.seed=[0]",)),),
    claims=tuple(f"V{number:03}" for number in range(16, 25)),
)
HOUR = Load(
    experiments=(("vamp/lmcache128", ("grid.seed=[0]",)),),
    claims=tuple(f"V{number:03}" for number in (*range(25, 29), *range(30, 34))),
)

SLOW_REDUCE = "mix.experts.ranks.reduce_bytes_per_s=9_450_000_000"
AS_IT_IS = Assumption(kind="as it is", text="the common assumptions")


def _sized(name: str, first: int, added: int, answer: int) -> tuple[str, ...]:
    """Other sizes of in-house turns."""
    return f"{name}.first_tokens={first}", f"{name}.added_tokens={added}", f"{name}.output_tokens={answer}"


def _contexts(name: str, first: float, added: float) -> tuple[str, ...]:
    """Other sizes of first prompts and of what turns add, against the fit."""
    return f"{name}.first_scale={first}", f"{name}.added_scale={added}"


def _in_house(
    name: str, most_of_it: tuple[int, int, int], short_answers: tuple[int, int, int]
) -> tuple[Assumption, ...]:
    """What in-house sessions leave open; with other sizes they end as long as they do."""
    return (
        AS_IT_IS,
        Assumption(kind="first prompt", text="85 % of the last context", overrides=_sized(name, *most_of_it)),
        Assumption(kind="thinking", text="none", overrides=(f"{name}.think_s=0",)),
        Assumption(kind="thinking", text="3 s", overrides=(f"{name}.think_s=3",)),
        Assumption(kind="thinking", text="5 s", overrides=(f"{name}.think_s=5",)),
        Assumption(kind="answers", text="100 tokens", overrides=_sized(name, *short_answers)),
        Assumption(kind="turns", text="all alike", overrides=_spread(name, 0, 0)),
        Assumption(kind="turns", text="answers differ by 20 %", overrides=_spread(name, 0, 0.2)),
        Assumption(kind="turns", text="answers differ by 70 %", overrides=_spread(name, 0, 0.7)),
        Assumption(kind="turns", text="another draw", overrides=_spread(name, 0.5, 0.5, drawn_by=1)),
        Assumption(kind="starts", text="evenly over 300 s", overrides=(f"{name}.start_within_s=300",)),
        Assumption(kind="declared output", text="1024 tokens", overrides=(f"{name}.declared_tokens=1024",)),
        Assumption(kind="an offload", text="closes the gap", overrides=("policy.vamp.increments=gap",)),
    )


def _spread(name: str, added: float, answers: float, *, drawn_by: int = 0) -> tuple[str, ...]:
    """Turns that differ by other shares, of one draw."""
    return f"++{name}.added_spread={added}", f"++{name}.output_spread={answers}", f"++{name}.drawn_by={drawn_by}"


LONG_ANSWERS = (
    *_spread(H200, 0.4, 0.5),
    *_sized(H200, 27_000, 20_400, 300),
    f"{H200}.think_s=3",
    f"{H200}.start_within_s=null",
)
ASSUMPTIONS: tuple[tuple[Load, tuple[Assumption, ...]], ...] = (
    (TWO_H100, _in_house(H100, (62_900, 790, 200), (6_000, 6_072, 100))),
    (TWO_H100, (Assumption(kind="all-reduce over the host", text="9.45 GB/s", overrides=(SLOW_REDUCE,)),)),
    (FOUR_H200, _in_house(H200, (215_900, 3_308, 165), (55_000, 18_000, 100))),
    (
        FOUR_H200,
        (
            Assumption(kind="last context", text="250,000 tokens", overrides=_sized(H200, 55_000, 17_547, 165)),
            Assumption(
                kind="turns",
                text="all alike; no thinking, answers of 100 tokens",
                overrides=(*_spread(H200, 0, 0), f"{H200}.think_s=0", *_sized(H200, 20_000, 21_163, 100)),
            ),
            Assumption(
                kind="turns",
                text="27,000 tokens first, answers of 300, 3 s of thinking, no delayed starts",
                overrides=LONG_ANSWERS,
            ),
            Assumption(
                kind="declared output",
                text="1024 tokens; 27,000 tokens first, answers of 300",
                overrides=(*LONG_ANSWERS, f"{H200}.declared_tokens=1024"),
            ),
        ),
    ),
    (
        REPLAY,
        (
            AS_IT_IS,
            Assumption(kind="first prompt", text="as fitted", overrides=(f"{SWE}.first_scale=1",)),
            Assumption(kind="what turns add", text="as fitted", overrides=(f"{SWE}.added_scale=1",)),
            Assumption(kind="what turns add", text="1.7 times the fit's", overrides=(f"{SWE}.added_scale=1.7",)),
            Assumption(kind="answers", text="as fitted", overrides=(f"{SWE}.output_scale=1",)),
            Assumption(kind="answers", text="3 times the fit's", overrides=(f"{SWE}.output_scale=3",)),
            Assumption(kind="thinking", text="as fitted", overrides=(f"{SWE}.think_scale=1",)),
            Assumption(kind="thinking", text="30 times the fit's", overrides=(f"{SWE}.think_scale=30",)),
            Assumption(kind="all-reduce over the host", text="9.45 GB/s", overrides=(SLOW_REDUCE,)),
            Assumption(
                kind="all-reduce over the host",
                text="9.45 GB/s; answers twice, thinking 12 times the fit's",
                overrides=(SLOW_REDUCE, f"{SWE}.output_scale=2", f"{SWE}.think_scale=12", *_contexts(SWE, 1.17, 2.3)),
            ),
        ),
    ),
    (
        SIX_HOURS,
        (
            AS_IT_IS,
            Assumption(kind="answers", text="as fitted", overrides=(f"{CLOSED}.output_scale=1",)),
            Assumption(kind="answers", text="twice the fit's", overrides=(f"{CLOSED}.output_scale=2",)),
            Assumption(kind="answers", text="10 times the fit's", overrides=(f"{CLOSED}.output_scale=10",)),
            Assumption(kind="thinking", text="6 times the fit's", overrides=(f"{CLOSED}.think_scale=6",)),
            Assumption(kind="thinking", text="30 times the fit's", overrides=(f"{CLOSED}.think_scale=30",)),
            Assumption(
                kind="what turns add",
                text="8 times the fit's; answers 4, thinking 200 times",
                overrides=(*_contexts(CLOSED, 1.8, 8), f"{CLOSED}.output_scale=4", f"{CLOSED}.think_scale=200"),
            ),
            Assumption(kind="all-reduce over the host", text="9.45 GB/s", overrides=(SLOW_REDUCE,)),
        ),
    ),
    (
        HOUR,
        (
            AS_IT_IS,
            Assumption(kind="thinking", text="as fitted", overrides=(f"{LMCACHE}.think_scale=1",)),
            Assumption(kind="contexts", text="as fitted", overrides=_contexts(LMCACHE, 1, 1)),
            Assumption(kind="starts", text="all at once", overrides=(f"{LMCACHE}.start_within_s=null",)),
            Assumption(kind="all-reduce over the host", text="9.45 GB/s", overrides=(SLOW_REDUCE,)),
        ),
    ),
)
LOADS = {"two_h100": TWO_H100, "four_h200": FOUR_H200, "replay": REPLAY, "six_hours": SIX_HOURS, "hour": HOUR}


def scored_under(of: tuple[Load, Assumption], root: Path) -> list[Scored]:
    """Score the claims of a load under one assumption."""
    load, assumption = of
    folder = root / f"{assumption.kind} {assumption.text}".replace(" ", "_")
    told = {
        name: collect(name, folder, [*FOR_ALL, *shorter, *assumption.overrides]) for name, shorter in load.experiments
    }
    return score([entry for entry in read_catalog("vamp") if entry.id in load.claims], told)


def rows(of: tuple[Load, Assumption], scored: Sequence[Scored]) -> Iterator[tuple[str, ...]]:
    """A row for each claim."""
    _, assumption = of
    for each in scored:
        error = "" if each.error is None else f"{each.error:.4f}"
        direction = "" if each.is_right is None else ("right" if each.is_right else "wrong")
        ours = (found(each), error, direction)
        yield each.entry.id, each.entry.text, said(each.entry), assumption.kind, assumption.text, *ours


def main(arguments: Sequence[str]) -> int:
    """Run every assumption and write the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for vamp_sensitivity.csv")
    parser.add_argument("--root", type=Path, default=Path("outputs/sensitivity_vamp"), help="folder for runs")
    parser.add_argument("--only", choices=LOADS, action="append", help="of these loads alone")
    parser.add_argument("--jobs", type=int, default=None, help="assumptions side by side; default: one a core")
    given = parser.parse_args(arguments)
    loads = [LOADS[name] for name in given.only or LOADS]
    wanted = [(load, assumption) for load, assumptions in ASSUMPTIONS if load in loads for assumption in assumptions]
    under = side_by_side(partial(scored_under, root=given.root), wanted, Parallel(jobs=given.jobs))
    table = [row for of, scored in zip(wanted, under, strict=True) for row in rows(of, scored)]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "vamp_sensitivity.csv"
    table += _of_others(path, {claim for load in loads for claim in load.claims})
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *sorted(table)])
    return 0


def _of_others(path: Path, claims: Container[str]) -> list[tuple[str, ...]]:
    """The rows of an earlier table that are not of these claims."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [tuple(row) for row in list(csv.reader(file))[1:] if row[0] not in claims]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
