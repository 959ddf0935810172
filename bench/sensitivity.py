"""What the paper leaves open and how far it moves its claims: one assumption changed at a time.

    python -m bench.sensitivity --out docs/claims

Scores the end-to-end claims that are farthest from the paper, and those in the wrong direction, under every assumption,
baseline and system alike.
The experiments are those of ``python -m sim claims``, of C1 and Pie at two loads and 40 s, so that all of it takes
minutes. Writes ``sensitivity.csv`` and a figure; runs that are there are not done again.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conf.paper.catalog import read_catalog
from conf.paper.collect import collect
from conf.paper.score import Scored, score
from conf.parallel import Parallel, side_by_side

EXPERIMENTS = ("mirage/fig8_c1", "mirage/fig9", "mirage/fig10", "mirage/fig14")

SHORTER: Mapping[str, tuple[str, ...]] = {
    "mirage/fig8_c1": ("loads=[0.6,0.9]",),
    "mirage/fig9": ("workload.duration_s=100",),  # at a request a second the first burst may come late
    "mirage/fig10": ("workload.duration_s=100",),
    "mirage/fig14": ("loads=[0.6,0.9]", "compare=[recompute,pie,mirage]"),
}
FOR_ALL = ("workload.duration_s=40", "parallel.jobs=1", "output.figures=false")

N_FARTHEST = 10

TBT = ("M011", "M018", "M021")
"""Claims for which other definitions of TBT are told as assumptions of their own."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the paper leaves open, and another answer to it.

    Attributes:
        overrides: for every experiment.
        of: more of them for some.
    """

    kind: str
    text: str
    overrides: tuple[str, ...] = ()
    of: tuple[tuple[str, tuple[str, ...]], ...] = ()


def _activations(n_bytes: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    models = {
        "mirage/fig8_c1": ("opt_13b", "llama_2_13b", "llama_3_8b"),
        "mirage/fig9": ("opt_30b", "opt_6_7b"),
        "mirage/fig10": ("opt_30b", "opt_6_7b"),
        "mirage/fig14": ("opt_13b",),
    }
    return tuple(
        (name, tuple(f"mix.models.{model}.activation_bytes={n_bytes}" for model in of)) for name, of in models.items()
    )


FREE = 10**18


def _loads(least: float, most: float) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((name, (f"loads=[{least},{most}]",)) for name in ("mirage/fig8_c1", "mirage/fig14"))


ASSUMPTIONS = (
    Assumption("as it is", "the common assumptions"),
    Assumption("rate", "0.3 and 0.45 of what the baseline serves", of=_loads(0.3, 0.45)),
    Assumption("rate", "1.2 and 1.8 of what the baseline serves", of=_loads(1.2, 1.8)),
    Assumption("quantum", "20 ms", ("tenancy.quantum_s=0.02",)),
    Assumption("quantum", "1 s", ("tenancy.quantum_s=1",)),
    Assumption("memory base", "98e9 bytes", ("hardware.hbm_bytes=98_000_000_000",)),
    Assumption("memory base", "108e9 bytes", ("hardware.hbm_bytes=108_000_000_000",)),
    Assumption("host time", "none", ("hardware.roofline.host_scale=0",)),
    Assumption("host time", "twice", ("hardware.roofline.host_scale=2",)),
    Assumption("activation reserve", "none", of=_activations(1)),
    Assumption("activation reserve", "1 GB a model", of=_activations(1_000_000_000)),
    Assumption(
        "division of arrivals",
        "a process of its own for each model, 150 s",  # each of them is idle for most of the time
        ("workload.division=per_model", "workload.duration_s=150"),
    ),
    Assumption(
        "output length",
        "512 declared, longer ones are cut",
        ("workload.declared=fixed", "workload.declared_tokens=512"),
    ),
    Assumption("arrivals", "Poisson", ("arrivals=poisson",)),
    Assumption(
        "link", "copies are free", (f"hardware.link.h2d_bytes_per_s={FREE}", f"hardware.link.joint_bytes_per_s={FREE}")
    ),
    Assumption("sequences at once", "1024 instead of 256", ("serving.max_num_seqs=1024",)),
    Assumption("bound of active lending", "no stall (ours)", ("policy.mirage.active_bound=no_stall",)),
)


def scored_under(assumption: Assumption, root: Path) -> list[Scored]:
    """Score the claims under one assumption."""
    more = dict(assumption.of)
    folder = root / f"{assumption.kind} {assumption.text}".replace(" ", "_")
    told = {
        name: collect(name, folder, [*FOR_ALL, *SHORTER.get(name, ()), *assumption.overrides, *more.get(name, ())])
        for name in EXPERIMENTS
    }
    entries = [entry for entry in read_catalog("mirage") if set(entry.experiments) & set(EXPERIMENTS)]
    return score([entry for entry in entries if entry.check == "e2e"], told)


def rows(found: Sequence[tuple[Assumption, list[Scored]]]) -> Iterator[tuple[str, ...]]:
    """A row for each of the farthest claims and each assumption; TBT by its other definitions below."""
    errors = {each.entry.id: each.error or 0.0 for each in found[0][1]}
    wrong = [each.entry.id for each in found[0][1] if not each.is_right]
    farthest = dict.fromkeys([*sorted(errors, key=lambda name: -errors[name])[:N_FARTHEST], *wrong])
    for name in farthest:
        for assumption, scored in found:
            (each,) = [one for one in scored if one.entry.id == name]
            assert each.ours is not None
            yield _row(each, assumption.kind, assumption.text, each.ours.values[0], each.error)
            if assumption.kind == "as it is" and name in TBT:
                for metric, value in (each.ours.beside or {}).items():
                    yield _row(each, "TBT definition", metric, value, None)


def _row(each: Scored, kind: str, text: str, ours: float, error: float | None) -> tuple[str, ...]:
    paper = f"{100 * each.entry.changes[0]:+.1f}"
    return (
        each.entry.id,
        each.entry.text,
        paper,
        kind,
        text,
        f"{100 * ours:+.1f}",
        "" if error is None else f"{error:.2f}",
    )


def main(arguments: Sequence[str]) -> int:
    """Run every assumption, write the table and the figure."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for sensitivity.csv and sensitivity.png")
    parser.add_argument("--root", type=Path, default=Path("outputs/sensitivity"), help="folder for runs")
    given = parser.parse_args(arguments)
    under = side_by_side(partial(scored_under, root=given.root), ASSUMPTIONS, Parallel())
    table = list(rows(list(zip(ASSUMPTIONS, under, strict=True))))
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / "sensitivity.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("claim", "text", "paper_percent", "assumption", "changed_to", "ours_percent", "error"), *table]
        )
    draw(table, given.out / "sensitivity.png")
    return 0


def draw(table: Sequence[tuple[str, ...]], path: Path) -> None:
    """Draw a panel a claim: ours under every assumption, the paper's value as a line."""
    from traces.plots.style import BLUE, VERMILION, panels

    claims = list(dict.fromkeys(row[0] for row in table))
    n_columns = 2
    n_rows = -(-len(claims) // n_columns)
    with panels(n_rows, n_columns, path, "Claims under changed assumptions", panel_inches=(6.0, 3.4)) as (_, axes):
        for ax in axes.flat[len(claims) :]:
            ax.set_visible(False)
        for ax, claim in zip(axes.flat, claims, strict=False):
            own = [row for row in table if row[0] == claim][::-1]
            ax.barh([f"{row[3]}: {row[4]}" for row in own], [float(row[5]) for row in own], color=BLUE)
            ax.axvline(float(own[0][2]), color=VERMILION)
            ax.set_title(f"{claim}: {own[0][1]} (the line: the paper), %")
            ax.tick_params(axis="y", labelsize=6)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
