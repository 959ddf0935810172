"""How far ours is from a paper's number, and whether its direction is right.

- A relative claim is compared by what remains: reductions of 90 and 95 % are a factor of two apart. Its error is
  |ln((1 + ours) / (1 + paper))|; a paper's change below 10 % counts by points instead.
- A value or a factor: |ln(ours / paper)|.
- A range: the larger error of its two ends. An ordering has no error: it holds or it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from statistics import fmean

from conf.paper.catalog import Entry, Reading
from traces.claims import METRICS, Result

SMALL_CHANGE = 0.10
"""Relative changes below this are compared by points."""

POINTS = 0.05
"""By how many points such a change may be off: as good as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an experiment came to: its runs, and the numbers of its figure."""

    results: Sequence[Result]
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our value in the unit of the claim (changes as shares), with its spread and what else there is to say.

    Attributes:
        values: one, or two for a range; none for an ordering.
        low, high: over the points.
        beside: by other definitions.
    """

    values: tuple[float, ...] = ()
    holds: bool | None = None
    low: float | None = None
    high: float | None = None
    n_points: int = 0
    definition: str = ""
    beside: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A claim with its score.

    Attributes:
        ours: ``None``: nothing answers it.
        error: see above; ``None`` for an ordering.
        is_right: whether the direction is; for a value whether it is within a quarter.
    """

    entry: Entry
    ours: Ours | None
    error: float | None = None
    is_right: bool | None = None

    @property
    def verdict(self) -> str:
        """One word."""
        if self.entry.ours is not None and self.entry.ours.same_as is not None:
            return f"as {self.entry.ours.same_as}"
        if self.ours is None:
            return "unscored"
        if self.entry.refuted is not None:
            return "refuted"
        return "right" if self.is_right else "wrong"

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do: it is scored, and right or refuted."""
        return self.verdict not in ("unscored", "wrong")


def score(entries: Sequence[Entry], told: Mapping[str, Told]) -> list[Scored]:
    """Score claims in their order.

    Args:
        told: by the name of the experiment; experiments that were not run leave claims unscored.
    """
    found: dict[str, Ours | None] = {}
    for entry in entries:
        if entry.ours is not None and not (entry.ours.range_of or entry.ours.same_as):
            found[entry.id] = _read(entry, [told[name] for name in entry.experiments if name in told])
    for entry in entries:
        if entry.ours is not None and entry.ours.range_of:
            found[entry.id] = _range(entry, entry.ours, found)
    for entry in entries:
        if entry.ours is not None and entry.ours.same_as:
            found[entry.id] = found.get(entry.ours.same_as)
    return [_scored(entry, found.get(entry.id)) for entry in entries]


def _scored(entry: Entry, ours: Ours | None) -> Scored:
    if ours is None:
        return Scored(entry=entry, ours=None)
    if ours.holds is not None:
        return Scored(entry=entry, ours=ours, is_right=ours.holds)
    if entry.is_relative:
        pairs = list(zip(ours.values, entry.changes, strict=True))
        return Scored(
            entry=entry,
            ours=ours,
            error=max(change_error(*pair) for pair in pairs),
            is_right=all(_same_direction(*pair) for pair in pairs),
        )
    ratio = ours.values[0] / entry.values[0]
    error = abs(log(ratio)) if ratio > 0 else inf
    return Scored(entry=entry, ours=ours, error=error, is_right=error <= 0.25)


def change_error(ours: float, paper: float) -> float:
    """Error of a relative change, both as signed shares."""
    if abs(paper) < SMALL_CHANGE:
        return abs(ours - paper)
    return abs(log(_remains(ours, paper)))


def _remains(ours: float, paper: float) -> float:
    """Ratio of what remains; a thousandth at least."""
    return max(1 + ours, 1e-3) / max(1 + paper, 1e-3)


def _same_direction(ours: float, paper: float) -> bool:
    if paper == 0:
        return abs(ours) <= POINTS
    return ours * paper > 0


def _read(entry: Entry, told: Sequence[Told]) -> Ours | None:
    """Our value of a claim; ``None`` if no experiment of it has run."""
    reading = entry.ours
    assert reading is not None
    if not told:
        return None
    if reading.change:
        return _change(entry, reading, [result for each in told for result in each.results])
    numbers = {name: value for each in told for name, value in each.numbers.items()}
    if reading.number is not None:
        return Ours(values=(_number(reading.number, numbers, entry.id),), definition=reading.number)
    assert reading.holds is not None
    return _holds(reading.holds, numbers, entry.id)


def _holds(text: str, numbers: Mapping[str, float], claim: str) -> Ours:
    """Find out whether every ``a < b < c`` of a text joined by ``and`` holds."""
    holds, shown = True, list[str]()
    for ordering in text.split(" and "):
        terms = [_number(term.strip(), numbers, claim) for term in ordering.split("<")]
        holds = holds and all(less < more for less, more in pairwise(terms))
        shown.append(" < ".join(f"{value:.4g}" for value in terms))
    return Ours(holds=holds, definition=f"{text}: {' and '.join(shown)}")


def _number(name: str, numbers: Mapping[str, float], claim: str) -> float:
    try:
        return float(name)
    except ValueError:
        pass
    if name not in numbers:
        raise ValueError(f"claim {claim}: no number {name}; its experiments gave {', '.join(sorted(numbers))}")
    return numbers[name]


def _change(entry: Entry, reading: Reading, results: Sequence[Result]) -> Ours:
    first, *others = reading.change
    changes = list(changes_of(first, reading, results))
    if not changes:
        raise ValueError(f"claim {entry.id}: no point was run by both {reading.of} and {reading.against}")
    over: Callable[[Sequence[float]], float] = fmean
    if reading.over != "mean":
        is_more = (reading.over == "max") == (entry.kind == "increase")
        over = max if is_more else min
    beside = {name: over(list(changes_of(name, reading, results))) for name in others}
    return Ours(
        values=(over(changes),),
        low=min(changes),
        high=max(changes),
        n_points=len(changes),
        definition=f"{reading.over} over {len(changes)} points, {METRICS[first].definition}",
        beside=beside,
    )


def changes_of(metric: str, reading: Reading, results: Sequence[Result]) -> Iterator[float]:
    """Relative change at each point that both systems ran."""
    kept = [result for result in results if _is_kept(result, reading.where)]
    ours = {_point(result): result for result in kept if result.info.label == reading.of}
    for base in kept:
        if base.info.label == reading.against and (other := ours.get(_point(base))) is not None:
            before, after = (METRICS[metric].of(each.summary.total) for each in (base, other))
            if before and after is not None:
                yield after / before - 1


def _is_kept(result: Result, where: Mapping[str, object]) -> bool:
    info = result.info
    facts: dict[str, object] = {"lengths": info.lengths, "mix": info.mix, "rate": info.rate_per_s, **info.grid}
    return all(facts.get(key) == value for key, value in where.items())


def _point(result: Result) -> tuple[str, str, float | None, int]:
    info = result.info
    return info.mix, info.workload, info.rate_per_s, info.seed


def _range(entry: Entry, reading: Reading, found: Mapping[str, Ours | None]) -> Ours | None:
    """The least and the greatest of the others' changes; ``None`` while one of them is not there."""
    values: list[float] = []
    for name in reading.range_of:
        ours = found.get(name)
        if ours is None:
            return None
        values += ours.values
    values.sort(reverse=entry.kind == "reduction")
    return Ours(
        values=(values[0], values[-1]),
        n_points=len(values),
        definition=f"least and greatest of {', '.join(reading.range_of)}",
    )
