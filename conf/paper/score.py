"""How far ours is from a paper's number, and whether its direction is right.

- A relative claim is compared by what remains: reductions of 90 and 95 % are a factor of two apart. Its error is
  |ln((1 + ours) / (1 + paper))|; a paper's change below 10 % counts by points instead.
- A value or a factor: |ln(ours / paper)|; where the paper's is 0, none if ours is, else without bound.
- Near is an error of a quarter at most, or of five points for a paper's change below 10 %.
- A range or a pair: the larger error of its two. The direction of a pair is which of the two is more. An
  ordering has no error: it holds or it does not.
- The verdict is ``right`` if the direction is, under the common assumptions. If it is not: ``refuted`` if ours is near
  the paper's number under none of the assumptions that were swept, ``open`` if it is under some: then what the paper
  does not say decides. Which of the two the catalogue says, and the sweep's file is its evidence
  (``tests/paper/test_evidence.py``). A slip of the paper's own arithmetic is ``refuted`` whatever the direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log
from statistics import fmean

from conf.paper.catalog import Entry, Reading
from conf.paper.cells import Row, Tables, cells, joined, term
from traces.claims import METRICS, Result

SMALL_CHANGE = 0.10
"""Relative changes below this are compared by points."""

POINTS = 0.05
"""By how many points such a change may be off: as good as none."""

WITHIN = 0.25
"""An error that counts as near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an experiment came to: its runs, the numbers of its figure, and the tables beside them."""

    results: Sequence[Result]
    numbers: Mapping[str, float]
    tables: Tables = field(default_factory=dict[str, Sequence[Row]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """Our value in the unit of the claim (changes as shares), with its spread and what else there is to say.

    Attributes:
        values: one, or two for a range or a pair; none for an ordering.
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
        is_right: whether the direction is; for a value, or both ends of a range, whether it is within a quarter.
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
        if self.is_right:
            return "right"
        return "wrong" if self.entry.open is None else "open"

    @property
    def is_near(self) -> bool:
        """Whether ours is near the paper's; an ordering never is."""
        if self.ours is None or self.error is None:
            return False
        if self.entry.is_relative:
            return all(map(is_near, self.ours.values, self.entry.changes))
        return self.error <= WITHIN

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do: it is scored, and right or refuted."""
        return self.verdict not in ("unscored", "wrong", "open")


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
    error = max(_ratio_error(*pair) for pair in zip(ours.values, entry.values, strict=True))
    is_right = _same_order(ours.values, entry.values) if entry.kind == "pair" else error <= 0.25
    return Scored(entry=entry, ours=ours, error=error, is_right=is_right)


def _ratio_error(ours: float, paper: float) -> float:
    if ours == paper:
        return 0.0
    return abs(log(ours / paper)) if ours > 0 and paper > 0 else inf


def _same_order(ours: Sequence[float], paper: Sequence[float]) -> bool:
    return (ours[1] - ours[0]) * (paper[1] - paper[0]) > 0


def change_error(ours: float, paper: float) -> float:
    """Error of a relative change, both as signed shares."""
    if abs(paper) < SMALL_CHANGE:
        return abs(ours - paper)
    return abs(log(_remains(ours, paper)))


def is_near(ours: float, paper: float) -> bool:
    """Whether a relative change is near the paper's."""
    return change_error(ours, paper) <= (POINTS if abs(paper) < SMALL_CHANGE else WITHIN)


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
    tables = joined([each.tables for each in told])
    if reading.column is not None:
        return _column(entry, reading, reading.column, tables)
    numbers = {name: value for each in told for name, value in each.numbers.items()}
    if reading.number is not None:
        return Ours(values=(_number(reading.number, numbers, entry.id),), definition=reading.number)
    assert reading.holds is not None
    return _holds(reading.holds, numbers, tables, entry.id)


def _column(entry: Entry, reading: Reading, column: str, tables: Tables) -> Ours | None:
    """What a column says of a system, alone or against another; ``None`` where there was nothing to measure."""

    def of(*systems: str) -> list[float]:
        try:
            return cells(tables[reading.file], column, systems, reading.where)
        except ValueError as mistake:
            raise ValueError(f"claim {entry.id}: {reading.file}.csv: {mistake}") from None

    own = of(*reading.systems)
    before = of(reading.against) if reading.against else None
    if not own or before == []:
        return None
    over = {"mean": fmean, "max": max, "min": min}[reading.over]
    shown = f"{column} of {', '.join(reading.systems) or 'all'}, {reading.over} over {len(own)} points"
    if before is not None:
        return Ours(values=_against(entry, over(own), over(before)), n_points=len(own), definition=shown)
    values = (over(own),) if len(entry.values) == 1 else (min(own), max(own))
    return Ours(values=values, n_points=len(own), definition=shown)


def _against(entry: Entry, own: float, before: float) -> tuple[float, ...]:
    if entry.kind == "pair":
        return before, own
    ratio = own / before if before else inf
    return (ratio - 1 if entry.is_relative else ratio,)


def _holds(text: str, numbers: Mapping[str, float], tables: Tables, claim: str) -> Ours | None:
    """Find out whether every ``a < b < c`` of a text joined by ``and`` holds; ``None`` where a cell is empty."""
    holds, shown = True, list[str]()
    for ordering in text.split(" and "):
        terms = [_term(each.strip(), numbers, tables, claim) for each in ordering.split("<")]
        known = [value for value in terms if value is not None]
        if len(known) < len(terms):
            return None
        holds = holds and all(less < more for less, more in pairwise(known))
        shown.append(" < ".join(f"{value:.4g}" for value in known))
    return Ours(holds=holds, definition=f"{text}: {' and '.join(shown)}")


def _term(text: str, numbers: Mapping[str, float], tables: Tables, claim: str) -> float | None:
    try:
        found = term(text, tables)
    except ValueError as mistake:
        raise ValueError(f"claim {claim}: {text}: {mistake}") from None
    if found is None:
        return _number(text, numbers, claim)
    return fmean(found) if found else None


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
