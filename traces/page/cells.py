"""The tables of a page: figures of systems beside each other, and causes of gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from policies.journal import GapCause
from policies.types import GIB, NS_PER_S
from traces.claims import Result
from traces.report import change, number
from traces.results.changes import in_words
from traces.results.metrics import Figures

NS_PER_MS = 10**6

Better = Literal["less", "more"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure of merit.

    Attributes:
        better: which way is better; ``None``: neither.
    """

    heading: str
    unit: str
    of: Callable[[Figures], float | None]
    better: Better | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure in words.

    Attributes:
        change: against the first system, in percent or times.
        verdict: ``better`` or ``worse`` than the first system; empty if neither.
    """

    value: str
    change: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one system, or one model of it, has done."""

    name: str
    cells: Sequence[Cell]


def _scaled(of: Callable[[Figures], float | None], unit: float) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        found = of(figures)
        return None if found is None else found / unit

    return value


COLUMNS = (
    Column(heading="TTFT P50", unit="s", of=_scaled(lambda each: each.ttft.p50_ns, NS_PER_S), better="less"),
    Column(heading="TTFT P99", unit="s", of=_scaled(lambda each: each.ttft.p99_ns, NS_PER_S), better="less"),
    Column(heading="TBT P50", unit="ms", of=_scaled(lambda each: each.gap.p50_ns, NS_PER_MS), better="less"),
    Column(heading="TBT P99", unit="ms", of=_scaled(lambda each: each.gap.p99_ns, NS_PER_MS), better="less"),
    Column(heading="mean gap P99", unit="ms", of=_scaled(lambda each: each.mean_gap.p99_ns, NS_PER_MS), better="less"),
    Column(heading="max gap P99", unit="ms", of=_scaled(lambda each: each.max_gap.p99_ns, NS_PER_MS), better="less"),
    Column(heading="output tokens", unit="1/s", of=lambda each: each.output_tokens_per_s, better="more"),
    Column(heading="preemptions", unit="", of=lambda each: each.n_preemptions, better="less"),
    Column(heading="recomputed", unit="tokens", of=lambda each: each.n_recomputed_tokens, better="less"),
    Column(heading="peak lent", unit="GiB", of=_scaled(lambda each: each.peak_lent_bytes, GIB)),
    Column(heading="lends", unit="", of=lambda each: each.n_lends),
    Column(heading="stalled", unit="%", of=_scaled(lambda each: each.stall_share, 0.01), better="less"),
)

DEFINITIONS: Mapping[str, str] = {
    "TTFT": "first token minus arrival, over finished requests",
    "TBT": "every gap between two tokens of a request, over all requests",
    "mean gap, max gap": "the mean and the largest gap of a request with two tokens or more, over finished requests",
    "output tokens": "of finished requests, over the time from the first arrival to the last finish",
    "P50, P99": "the smallest value that so many percent of the values do not exceed; it did occur",
    "lends": "loans of a layer's memory that decisions began",
    "stalled": "share of the duration of all steps that was spent waiting for memory that was not in place",
    "-": "nothing to tell: there was none, or the run did not keep the table",
}


def by_system(systems: Mapping[str, Sequence[Result]]) -> list[Row]:
    """A row a system, each but the first with its change; seeds are averaged."""
    base = next(iter(systems.values()))
    before = [_mean([each.summary.total for each in base], column) for column in COLUMNS]
    rows: list[Row] = []
    for label, group in systems.items():
        after = [_mean([each.summary.total for each in group], column) for column in COLUMNS]
        rows.append(Row(name=label, cells=_cells(before if group is not base else None, after)))
    return rows


def by_model(systems: Mapping[str, Sequence[Result]]) -> list[Row]:
    """A row for each model of each system."""
    rows: list[Row] = []
    for label, group in systems.items():
        for index, model in enumerate(group[0].info.models):
            values = [_mean([each.summary.by_model[index] for each in group], column) for column in COLUMNS]
            rows.append(Row(name=f"{label}: {model.name}", cells=_cells(None, values)))
    return rows


def causes(systems: Mapping[str, Sequence[Result]]) -> list[Row]:
    """For each system the share of each cause in all gaps, then in those above their P99, in percent."""
    rows: list[Row] = []
    for label, group in systems.items():
        for which, shares in (("all gaps", "gap_share"), ("above P99", "tail_share")):
            cells = [
                Cell(value=number(100 * fmean(getattr(each.summary.total, shares).get(cause, 0) for each in group)))
                for cause in CAUSES
            ]
            rows.append(Row(name=f"{label}, {which}", cells=cells))
    return rows


CAUSES = tuple(cause.name.lower() for cause in GapCause)


def causes_in_words() -> Mapping[str, str]:
    """What each cause of a gap means."""
    return {cause: in_words(cause, GapCause) for cause in CAUSES}


def answers(systems: Mapping[str, Sequence[Result]]) -> Iterator[str]:
    """Say in a sentence how each system compares with the first."""
    rows = by_system(systems)
    shown = [index for index, column in enumerate(COLUMNS) if column.heading in _ANSWERED]
    for row in rows[1:]:
        told = [_compared(COLUMNS[index], rows[0].cells[index], row.cells[index]) for index in shown]
        yield f"{row.name} against {rows[0].name}: {', '.join(told)}."


_ANSWERED = frozenset({"TTFT P99", "mean gap P99", "output tokens"})


def _compared(column: Column, before: Cell, after: Cell) -> str:
    unit = {"1/s": "/s"}.get(column.unit, f" {column.unit}")
    by = f" ({after.change})" if after.change else ""
    return f"{column.heading} {after.value}{unit} instead of {before.value}{unit}{by}"


def _mean(figures: Sequence[Figures], column: Column) -> float | None:
    values = [value for each in figures if (value := column.of(each)) is not None]
    return fmean(values) if values else None


def _cells(before: Sequence[float | None] | None, after: Sequence[float | None]) -> list[Cell]:
    if before is None:
        return [Cell(value=number(value)) for value in after]
    return [
        Cell(value=number(new), change=change(old, new), verdict=_verdict(column, old, new))
        for column, old, new in zip(COLUMNS, before, after, strict=True)
    ]


def _verdict(column: Column, before: float | None, after: float | None) -> str:
    if column.better is None or before is None or after is None or change(before, after) in ("", "0%"):
        return ""
    return "better" if (after < before) == (column.better == "less") else "worse"
