"""What the paper leaves open and how far it moves its claims: one assumption changed at a time.

    python -m bench.sensitivity --out docs/claims

Scores the end-to-end claims and the ablations under every assumption, baseline and system alike, and tells whether the
paper's value lies between the least and the most. The experiments are those of ``python -m sim claims`` at two loads.
Writes ``sensitivity.csv``, ``sensitivity_ranges.csv`` and a figure of the claims that are farthest from the paper; runs
that are there are not done again.
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

E2E = ("mirage/fig8_c1", "mirage/fig8_c2", "mirage/fig9", "mirage/fig10", "mirage/fig14")
ABLATIONS = ("mirage/fig11", "mirage/fig15", "mirage/fig16", "mirage/fig17")

TWO = "loads=[0.9,1.3]"
SHORTER: Mapping[str, tuple[str, ...]] = {
    "mirage/fig8_c1": (TWO,),
    "mirage/fig8_c2": (TWO,),
    "mirage/fig9": (TWO,),
    "mirage/fig14": (TWO, "compare=[recompute,pie,mirage]"),
}
FOR_ALL = ("parallel.jobs=1", "output.figures=false")

N_FARTHEST = 10
"""Claims that are drawn."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the paper leaves open, and another answer to it.

    Attributes:
        overrides: for every experiment.
        of: more of them for some.
        experiments: whose claims it may move.
    """

    kind: str
    text: str
    overrides: tuple[str, ...] = ()
    of: tuple[tuple[str, tuple[str, ...]], ...] = ()
    experiments: tuple[str, ...] = E2E


def _activations(n_bytes: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    models = {
        "mirage/fig8_c1": ("opt_13b", "llama_2_13b", "llama_3_8b"),
        "mirage/fig8_c2": ("opt_30b", "opt_6_7b"),
        "mirage/fig9": ("opt_30b", "opt_6_7b"),
        "mirage/fig10": ("opt_30b", "opt_6_7b"),
        "mirage/fig14": ("opt_13b",),
    }
    return tuple(
        (name, tuple(f"mix.models.{model}.activation_bytes={n_bytes}" for model in of)) for name, of in models.items()
    )


FREE = 10**18


EVERY = E2E + ABLATIONS


def _loads(*loads: float) -> tuple[tuple[str, tuple[str, ...]], ...]:
    shares = f"loads=[{','.join(map(str, loads))}]"
    return tuple((name, (shares,)) for name in ("mirage/fig8_c1", "mirage/fig8_c2", "mirage/fig9", "mirage/fig14"))


ASSUMPTIONS = (
    Assumption("as it is", "the common assumptions", experiments=EVERY),
    Assumption("rate", "0.3, 0.45 and 0.6 of what the baseline serves", of=_loads(0.3, 0.45, 0.6)),
    Assumption("rate", "1.5 and 1.8 of what the baseline serves", of=_loads(1.5, 1.8)),
    Assumption("quantum", "20 ms", ("tenancy.quantum_s=0.02",)),
    Assumption("quantum", "1 s", ("tenancy.quantum_s=1",)),
    Assumption("memory base", "96e9 bytes, the nominal size", ("hardware.hbm_bytes=96_000_000_000",)),
    Assumption(
        "memory base",
        "94.5 GiB, what PyTorch sees of a GH200",  # vllm-project/vllm issue 9630
        ("hardware.hbm_bytes=101_468_602_368",),
    ),
    Assumption("host time", "none", ("hardware.roofline.host_scale=0",)),
    Assumption("host time", "twice", ("hardware.roofline.host_scale=2",)),
    Assumption("activation reserve", "none", of=_activations(1)),
    Assumption("activation reserve", "1 GB a model", of=_activations(1_000_000_000)),
    Assumption("division of arrivals", "a process of its own for each model", ("workload.division=per_model",)),
    Assumption(
        "output length",
        "512 declared, longer ones are cut",
        ("workload.declared=fixed", "workload.declared_tokens=512"),
    ),
    Assumption("arrivals", "Poisson", ("arrivals=poisson",)),
    Assumption("arrivals", "another draw", ("++grid.seed=[3]",), experiments=EVERY),
    Assumption(
        "link", "copies are free", (f"hardware.link.h2d_bytes_per_s={FREE}", f"hardware.link.joint_bytes_per_s={FREE}")
    ),
    Assumption(
        "link", "377 GB/s, as measured elsewhere", ("hardware.link.h2d_bytes_per_s=377_000_000_000",), experiments=EVERY
    ),
    Assumption("sequences at once", "1024 instead of 256", ("serving.max_num_seqs=1024",)),
    Assumption("bound of active lending", "no stall (ours)", ("policy.mirage.active_bound=no_stall",)),
    Assumption(
        "Pie",
        "ideal: copies cost their bytes alone",
        of=(("mirage/fig14", ("policy.pie.copy_ns=0",)),),
        experiments=("mirage/fig14",),
    ),
)


def scored_under(assumption: Assumption, root: Path) -> list[Scored]:
    """Score the claims under one assumption."""
    more = dict(assumption.of)
    folder = root / f"{assumption.kind} {assumption.text}".replace(" ", "_").replace(",", "").replace(":", "")
    told = {
        name: collect(name, folder, [*FOR_ALL, *SHORTER.get(name, ()), *assumption.overrides, *more.get(name, ())])
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
                    yield _row(each, assumption.kind, assumption.text, each.ours.values[0], each.error)
                    for metric, value in _beside(each):
                        yield _row(each, "TBT definition", f"{metric}; {assumption.text}", value, None)


def _beside(each: Scored) -> Iterator[tuple[str, float]]:
    """The claim by the other definitions of TBT, if it is one."""
    assert each.ours is not None
    if each.entry.ours is not None and each.entry.ours.change[:1] == ("max_gap_p99",) and each.entry.check == "e2e":
        yield from (each.ours.beside or {}).items()


def ranges(table: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """For each claim the least and the most of ours, and whether the paper's value lies between them."""
    for claim in dict.fromkeys(row[0] for row in table):
        own = [row for row in table if row[0] == claim]
        paper, values = float(own[0][2]), [float(row[5]) for row in own]
        inside = min(values) <= paper <= max(values)
        yield (*own[0][:3], own[0][5], f"{min(values):+.1f}", f"{max(values):+.1f}", "yes" if inside else "no")


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
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds of assumption; all if it is left out")
    parser.add_argument("--jobs", type=int, help="assumptions at a time; as many as there are cores if it is left out")
    given = parser.parse_args(arguments)
    chosen = [each for each in ASSUMPTIONS if not given.only or each.kind in ("as it is", *given.only)]
    under = side_by_side(partial(scored_under, root=given.root), chosen, Parallel(jobs=given.jobs))
    table = list(rows(list(zip(chosen, under, strict=True))))
    given.out.mkdir(parents=True, exist_ok=True)
    header = ("claim", "text", "paper_percent", "assumption", "changed_to", "ours_percent", "error")
    _write(given.out / "sensitivity.csv", [header, *table])
    spans = list(ranges(table))
    header = ("claim", "text", "paper_percent", "as_it_is_percent", "least_percent", "most_percent", "paper_inside")
    _write(given.out / "sensitivity_ranges.csv", [header, *spans])
    print(f"the paper's value lies within the range of {sum(row[-1] == 'yes' for row in spans)} of {len(spans)} claims")
    draw([row for row in table if row[3] != "TBT definition"], given.out / "sensitivity.png")
    return 0


def _write(path: Path, lines: Sequence[tuple[str, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)


def draw(table: Sequence[tuple[str, ...]], path: Path) -> None:
    """Draw a panel a claim: ours under every assumption, the paper's value as a line."""
    from traces.plots.style import BLUE, VERMILION, panels

    claims = list(dict.fromkeys(row[0] for row in table))[:N_FARTHEST]
    n_columns = 2
    n_rows = -(-len(claims) // n_columns)
    title = "Claims under changed assumptions, % (the line: the paper)"
    with panels(n_rows, n_columns, path, title, panel_inches=(6.0, 3.4)) as (_, axes):
        for ax in axes.flat[len(claims) :]:
            ax.set_visible(False)
        for ax, claim in zip(axes.flat, claims, strict=False):
            own = [row for row in table if row[0] == claim][::-1]
            ax.barh([f"{row[3]}: {row[4]}" for row in own], [float(row[5]) for row in own], color=BLUE)
            ax.axvline(float(own[0][2]), color=VERMILION)
            ax.set_title(f"{claim}: {own[0][1]}")
            ax.tick_params(axis="y", labelsize=6)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
