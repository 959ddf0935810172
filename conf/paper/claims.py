"""``python -m sim claims``: every number of the papers beside ours.

Experiments run as far as their runs are not there already (they are found by a digest of all that they depend on),
their figures are drawn, and each claim is scored: how far ours is off, and whether its direction is right. It ends
with 1 while a claim is unscored, or a direction is wrong and not refuted: that it is open does not suffice.
"""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from conf.cli import Refused
from conf.paper.catalog import CHECKS, Entry, papers, read_catalog
from conf.paper.collect import collect
from conf.paper.page import page
from conf.paper.score import WITHIN, Scored, Told, score
from policies.errors import Stuck

UNSETTLED = 1

EXAMPLES = """
  python -m sim claims                            all of them
  python -m sim claims --paper mirage             of one paper
  python -m sim claims --only fig8                whose experiments begin so
  python -m sim claims --only M056 --root /data   by number; results elsewhere
  python -m sim claims seed=1                     under another assumption
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out ``claims``.

    Raises:
        Refused: there is no such paper or claim, or an experiment cannot run.
    """
    parser = ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every experiment")
    parser.add_argument("--paper", choices=papers(), help="only the claims of this one")
    parser.add_argument("--only", metavar="NAME", help="only claims or experiments that begin so")
    parser.add_argument("--root", type=Path, default=Path("outputs/claims"), help="folder for results")
    given = parser.parse_intermixed_args(arguments)
    try:
        entries = read_catalog(*([given.paper] if given.paper else papers()))
        wanted = _wanted(entries, given.only)
        told = _collected(wanted, given.root, given.changes)
        scored = score(wanted, told)
    except (ValueError, Stuck) as mistake:
        raise Refused(str(mistake)) from None
    print(table(scored))
    print(summary(scored))
    write_csv(scored, given.root / "claims.csv")
    (given.root / "claims.html").write_text(page(scored, given.root, summary(scored)), encoding="utf-8")
    print(f"results in {given.root}: claims.csv, claims.html")
    return 0 if all(each.is_settled for each in scored) else UNSETTLED


def _wanted(entries: Sequence[Entry], only: str | None) -> list[Entry]:
    """The claims that are asked for, and those that ranges and duplicates of them need."""
    if only is None:
        return list(entries)
    names = {entry.id for entry in entries if entry.id.startswith(only) or _is_of(entry, only)}
    if not names:
        raise ValueError(f"--only {only}: no claim and no experiment begins so")
    while True:
        needed = {name for entry in entries if entry.id in names for name in _needs(entry)} - names
        if not needed:
            return [entry for entry in entries if entry.id in names]
        names |= needed


def _is_of(entry: Entry, only: str) -> bool:
    return any(name.startswith(only) or name.rpartition("/")[2].startswith(only) for name in entry.experiments)


def _needs(entry: Entry) -> tuple[str, ...]:
    if entry.ours is None:
        return ()
    return (*entry.ours.range_of, *((entry.ours.same_as,) if entry.ours.same_as else ()))


def _collected(entries: Iterable[Entry], root: Path, changes: Sequence[str]) -> dict[str, Told]:
    """Carry out the experiments that claims need, once each."""
    told: dict[str, Told] = {}
    for name in dict.fromkeys(name for entry in entries for name in entry.experiments):
        began = perf_counter()
        told[name] = collect(name, root, changes)
        if sys.stderr.isatty():
            print(f"  {name}: {perf_counter() - began:.1f} s", file=sys.stderr)
    return told


def table(scored: Sequence[Scored]) -> str:
    """One line a claim: what the paper says, what ours is, how far off, and the verdict."""
    lines = [f"{'':5} {'claim':62} {'paper':>13} {'ours':>13} {'least':>7} {'most':>7} {'error':>6}  verdict"]
    for each in scored:
        entry, ours = each.entry, each.ours
        low = high = ""
        if ours is not None and ours.low is not None and ours.high is not None:
            low, high = f"{100 * ours.low:+.0f}%", f"{100 * ours.high:+.0f}%"
        error = "" if each.error is None else f"{each.error:.2f}"
        lines.append(
            f"{entry.id:5} {entry.text[:62]:62} {said(entry):>13} {found(each):>13} {low:>7} {high:>7} {error:>6}"
            f"  {each.verdict}"
        )
    return "\n".join(lines)


def said(entry: Entry) -> str:
    """The paper's value in words."""
    if entry.kind == "ordering":
        return "holds"
    if entry.is_relative:
        return " to ".join(f"{100 * value:+.4g}%" for value in entry.changes)
    return _joined(entry).join(f"{value:g}" for value in entry.values)


def found(each: Scored) -> str:
    """Ours in the same form."""
    if each.ours is None:
        return "-"
    if each.ours.holds is not None:
        return "holds" if each.ours.holds else "does not"
    if each.entry.is_relative:
        return " to ".join(f"{100 * value:+.1f}%" for value in each.ours.values)
    return _joined(each.entry).join(f"{value:.4g}" for value in each.ours.values)


def evidence(entry: Entry) -> str:
    """Why a claim is refuted or open, and the file that shows it."""
    found = entry.refuted or entry.open
    return "" if found is None else f"{found.because} ({found.evidence})"


def _joined(entry: Entry) -> str:
    """A range has two ends, a pair the values of two systems."""
    return " -> " if entry.kind == "pair" else " to "


def summary(scored: Sequence[Scored]) -> str:
    """How many claims of each kind are right and near; duplicates are not counted."""
    lines: list[str] = []
    for check in CHECKS:
        own = [each for each in scored if each.entry.check == check and not each.verdict.startswith("as ")]
        if own:
            errors = [each.error for each in own if each.error is not None]
            near = sum(each.is_near for each in own)
            middle = f", median error {median(errors):.2f}" if errors else ""
            verdicts = [each.verdict for each in own]
            counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
            lines.append(f"{check}: {len(own)} claims: {counts}; {near} of {len(errors)} within {WITHIN:.2f}{middle}")
    return "\n".join(lines)


def write_csv(scored: Sequence[Scored], path: Path) -> None:
    """Leave the table for other programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(
            ("id", "paper", "check", "text", "source", "kind", "paper_value", "ours", "least", "most", "n_points",
             "error", "direction", "verdict", "definition", "assumes", "experiments", "because")
        )  # fmt: skip
        for each in scored:
            entry, ours = each.entry, each.ours
            rows.writerow(
                (entry.id, entry.paper, entry.check, entry.text, entry.source, entry.kind, said(entry), found(each),
                 "" if ours is None or ours.low is None else f"{ours.low:.4f}",
                 "" if ours is None or ours.high is None else f"{ours.high:.4f}",
                 "" if ours is None else ours.n_points,
                 "" if each.error is None else f"{each.error:.4f}",
                 "" if each.is_right is None else ("right" if each.is_right else "wrong"), each.verdict,
                 "" if ours is None else ours.definition, entry.assumes, " ".join(entry.experiments),
                 evidence(entry))
            )  # fmt: skip
