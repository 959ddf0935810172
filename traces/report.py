"""Results as text for a terminal: systems beside each other, a paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from textwrap import wrap

from policies.journal import GapCause
from policies.types import GIB, NS_PER_S
from traces.claims import Claim, Finding, Result, findings
from traces.results.metrics import Figures

WIDTH = 120
NS_PER_MS = 10**6
_NAME_WIDTH = 16


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: three lines of heading, and the figure in the unit of the heading."""

    heading: tuple[str, str, str]
    of: Callable[[Figures], float | None]


def _s(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_S


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS


def _gib(n_bytes: float | None) -> float | None:
    return None if n_bytes is None else n_bytes / GIB


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


_COLUMNS = (
    _Column(("TTFT", "P50", "s"), lambda figures: _s(figures.ttft.p50_ns)),
    _Column(("TTFT", "P99", "s"), lambda figures: _s(figures.ttft.p99_ns)),
    _Column(("TBT", "P50", "ms"), lambda figures: _ms(figures.gap.p50_ns)),
    _Column(("TBT", "P99", "ms"), lambda figures: _ms(figures.gap.p99_ns)),
    _Column(("TBT", "P99.9", "ms"), lambda figures: _ms(figures.gap.p999_ns)),
    _Column(("mean", "gap P50", "ms"), lambda figures: _ms(figures.mean_gap.p50_ns)),
    _Column(("mean", "gap P99", "ms"), lambda figures: _ms(figures.mean_gap.p99_ns)),
    _Column(("largest", "gap P99", "ms"), lambda figures: _ms(figures.max_gap.p99_ns)),
    _Column(("output", "tokens", "/s"), lambda figures: figures.output_tokens_per_s),
    _Column(("pre-", "emp-", "tions"), lambda figures: figures.n_preemptions),
    _Column(("recom-", "puted", "tokens"), lambda figures: figures.n_recomputed_tokens),
    _Column(("peak", "lent", "GiB"), lambda figures: _gib(figures.peak_lent_bytes)),
    _Column(("", "re-", "verts"), lambda figures: figures.n_reverts),
    _Column(("stall", "share", "%"), lambda figures: _percent(figures.stall_share)),
)

_GAPS: Mapping[str, Callable[[Figures], Mapping[str, float]]] = {
    "all": lambda figures: figures.gap_share,
    "above P99": lambda figures: figures.tail_share,
}

_CLAIMS_TITLE = (
    "The paper's average and ours: change of {} against {}; ours is the mean over the points (lengths, rate, seed)\n"
    "that both ran, with the least and the most of them"
)


def report(results: Sequence[Result], claims: Sequence[Claim] = ()) -> str:
    """Compare systems for every mix, workload and rate, then the paper's claims with ours; a sweep in one table.

    Args:
        results: the systems in the order in which they are listed; the first is what the others are
            compared with. Runs that differ only in their seed are averaged.
        claims: those about a mix or systems that were not run are left out.
    """
    is_sweep = any(result.info.grid for result in results)
    tables = [sweep(results)] if is_sweep else [comparison(results), causes(results)]
    parts = [*tables, claims_beside_ours(claims, results)]
    return "\n\n".join(part for part in parts if part)


def comparison(results: Sequence[Result]) -> str:
    """One table for each mix, workload and rate: a system a row, below it the change against the first."""
    blocks: list[str] = []
    for title, systems in _groups(results):
        notes = [note for system, group in systems.items() for note in _notes(system, group)]
        rows = [*_headings(), *_compared(systems)]
        blocks.append("\n".join([title + _against(systems), *_aligned(rows), *notes]))
    return "\n\n".join(blocks)


def sweep(results: Sequence[Result]) -> str:
    """One table of all: below each mix, workload and rate its systems; told beside it only which runs lack requests."""
    rows = _headings()
    notes: list[str] = []
    for title, systems in _groups(results):
        rows += [[f"{title}{_against(systems)}:"], *_compared(systems)]
        lacking = (note for label, group in systems.items() for note in _notes(label, group, lending=False))
        notes += [f"  {title}:{note[1:]}" for note in lacking]
    return "\n".join([*_aligned(rows), *notes])


def _compared(systems: Mapping[str, Sequence[Result]]) -> Iterator[list[str]]:
    """A row for each system, and below it its change against the first."""
    base = next(iter(systems.values()))
    before = [_mean(base, column.of) for column in _COLUMNS]
    for system, group in systems.items():
        values = [_mean(group, column.of) for column in _COLUMNS]
        yield [system, *map(number, values)]
        if group is not base:
            yield ["", *map(change, before, values)]


def _against(systems: Mapping[str, object]) -> str:
    return f" (second lines: against {next(iter(systems))})" if len(systems) > 1 else ""


def by_model(results: Sequence[Result]) -> str:
    """The same figures for each model of each system."""
    blocks: list[str] = []
    for title, systems in _groups(results):
        rows = _headings()
        for system, group in systems.items():
            rows.append([f"{system}:"])
            for index, model in enumerate(group[0].info.models):
                parts = [result.summary.by_model[index] for result in group]
                rows.append([f" {model.name}", *(number(_mean_of(parts, column.of)) for column in _COLUMNS)])
        blocks.append("\n".join([title, *_aligned(rows)]))
    return "\n\n".join(blocks)


def causes(results: Sequence[Result]) -> str:
    """Why tokens came when they did: the share of each cause in all gaps, and in the gaps above their P99."""
    names = [cause.name.lower() for cause in GapCause]
    blocks: list[str] = []
    for title, systems in _groups(results):
        rows = [["", "gaps", *names]]
        for system, group in systems.items():
            for which, shares_of in _GAPS.items():
                shares = [
                    _mean(group, lambda figures, of=shares_of, name=name: of(figures).get(name)) for name in names
                ]
                rows.append([system if which == "all" else "", which, *(number(_percent(share)) for share in shares)])
        blocks.append("\n".join([f"{title}: causes of the gaps, %", *_aligned(rows, n_left=2)]))
    return "\n\n".join(blocks)


def claims_beside_ours(claims: Sequence[Claim], results: Sequence[Result]) -> str:
    """One line a claim with our number by its likeliest reading, then one for each other reading."""
    blocks: list[str] = []
    for pair in dict.fromkeys((claim.system, claim.baseline) for claim in claims):
        rows = [["", "claim", "paper", "ours", "least", "most", "points", "definition"]]
        for claim in claims:
            found = findings(claim, results) if (claim.system, claim.baseline) == pair else ()
            for index, finding in enumerate(found):
                named = [claim.id, claim.text, _signed(claim.change)] if index == 0 else ["", "", ""]
                rows.append([*named, *_finding_cells(finding)])
        if len(rows) > 1:
            blocks.append("\n".join([_CLAIMS_TITLE.format(*pair), *_aligned(rows, n_left=2, last_left=True)]))
    return "\n\n".join(blocks)


def number(value: float | None) -> str:
    """Write a figure >= 0 with about three digits, from 10,000 on in k or M; ``-`` for an absent one."""
    if value is None:
        return "-"
    for least, unit, suffix in ((10**6, 10**6, "M"), (10**4, 10**3, "k")):
        if value >= least:
            return f"{value / unit:.{_decimals(value / unit)}f}{suffix}"
    return f"{value:.{0 if value == int(value) else _decimals(value)}f}"


def change(before: float | None, after: float | None) -> str:
    """Write the relative change in percent; empty where there is nothing to compare with."""
    if not before or after is None:
        return ""
    ratio = after / before
    if ratio >= 10:
        return f"x{number(ratio)}"
    percent = round((ratio - 1) * 100)
    return f"{percent:+d}%" if percent else "0%"


def _decimals(value: float) -> int:
    return next((decimals for decimals, bound in enumerate((100, 10, 1)) if value >= bound), 3)


def _signed(ratio: float) -> str:
    percent = round(ratio * 100, 1)
    return f"{percent:+.1f}%" if percent else "0.0%"


def _finding_cells(finding: Finding) -> list[str]:
    shown = [_signed(ratio) for ratio in (finding.mean, finding.low, finding.high)]
    return [*shown, str(finding.n_points), finding.metric.definition]


def _groups(results: Sequence[Result]) -> Iterator[tuple[str, dict[str, list[Result]]]]:
    """For each mix, workload and rate a title and the runs of each system, all in order of appearance."""
    found: dict[tuple[str, str, float | None], dict[str, list[Result]]] = {}
    for result in results:
        info = result.info
        systems = found.setdefault((info.mix, info.workload, info.rate_per_s), {})
        systems.setdefault(info.label, []).append(result)
    for systems in found.values():
        info = next(iter(systems.values()))[0].info
        n_seeds = max(map(len, systems.values()))
        seeds = f", mean of {n_seeds} seeds" if n_seeds > 1 else ""
        yield f"{info.mix}, {info.workload}, {info.rate}{seeds}", systems


def _mean(group: Sequence[Result], of: Callable[[Figures], float | None]) -> float | None:
    return _mean_of([result.summary.total for result in group], of)


def _mean_of(figures: Sequence[Figures], of: Callable[[Figures], float | None]) -> float | None:
    values = [value for each in figures if (value := of(each)) is not None]
    return fmean(values) if values else None


def _notes(system: str, group: Sequence[Result], *, lending: bool = True) -> Iterator[str]:
    """What a reader must know beside the figures, a run a line: requests without a latency, and who lent how much."""
    for result in group:
        summary, total = result.summary, result.summary.total
        words: list[str] = []
        if summary.state != "complete" or total.n_dropped or total.n_unfinished:
            words.append(
                f"{summary.state}, {total.n_finished} requests finished, {total.n_dropped} dropped, "
                f"{total.n_unfinished} unfinished"
            )
        if total.n_lends and lending:
            words.append(_lending(result))
        if words:
            seed = f" (seed {result.info.seed})" if len(group) > 1 else ""
            line = f"{system}{seed}: {'; '.join(words)}"
            yield from wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _lending(result: Result) -> str:
    lent = [
        f"{model.name} {number(_gib(figures.peak_lent_bytes))}"
        for model, figures in zip(result.info.models, result.summary.by_model, strict=True)
        if figures.peak_lent_bytes
    ]
    total = result.summary.total
    loans = f"{total.n_lends} lends, {total.n_reverts} reverts, {total.n_flips} flips"
    return f"{loans}; peak lent GiB: {', '.join(lent)}" if lent else loans


def _headings() -> list[list[str]]:
    return [["", *line] for line in zip(*(column.heading for column in _COLUMNS), strict=True)]


def _aligned(rows: Sequence[Sequence[str]], *, n_left: int = 1, last_left: bool = False) -> list[str]:
    """Line up cells: the first ``n_left`` columns to the left, the others to the right.

    A name that is longer than its column has a line of its own above its row.
    """
    long = max((len(row[0]) for row in rows), default=0) > _NAME_WIDTH
    split: list[Sequence[str]] = []
    for row in rows:
        if len(row[0]) > _NAME_WIDTH and len(row) > 1:
            split += [[row[0]], ["", *row[1:]]]
        else:
            split.append(row)
    cells = [row for row in split if len(row) > 1]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    widths[0] = max(widths[0], _NAME_WIDTH if long else 0)
    gap = "  " if sum(widths) + 2 * len(widths) <= WIDTH else " "
    lines: list[str] = []
    for row in split:
        padded = [
            cell.ljust(width) if index < n_left or (last_left and index == len(widths) - 1) else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append(gap.join(padded).rstrip() if len(row) > 1 else row[0])
    return lines
