"""What a reader must know before believing the figures of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traces.claims import Result
from traces.results.folder import RunTables, read_json

LEAST_FOR_P99 = 100
"""Of fewer values the P99 is the largest of them, by its definition in ``traces/results/metrics.py``."""


def cautions(runs: Sequence[tuple[Result, RunTables]]) -> list[str]:
    """List what limits the figures: each a sentence, told once."""
    said = [*_of_each(runs), *_of_together(runs), *_of_the_code([tables for _, tables in runs])]
    return list(dict.fromkeys(said))


def _of_each(runs: Sequence[tuple[Result, RunTables]]) -> Iterator[str]:
    for result, tables in runs:
        total, name = result.summary.total, _name(result)
        if tables.state != "complete":
            reason = f" ({tables.reason})" if tables.reason else ""
            yield f"{name} is {tables.state}{reason}: its figures are of what there was."
        if total.n_dropped:
            yield f"{name}: {total.n_dropped:,} requests were dropped; they have no latency."
        if total.n_unfinished:
            yield f"{name}: {total.n_unfinished:,} requests had not finished; their gaps count, their latency does not."
        if total.n_finished < LEAST_FOR_P99:
            yield f"{name}: {total.n_finished:,} finished requests; a P99 over fewer than 100 is the largest value."
        missing = [table for table in ("steps", "decisions", "memory") if table not in tables.kept]
        if missing:
            yield f"{name} did not keep its {', '.join(missing)}; what is told from them is missing."
        if "decisions" in tables.kept and (n := int(tables.columns("decisions", ("refused",))["refused"].sum())):
            yield f"{name}: {n:,} decisions were refused, because what they wanted did not fit."


def _of_together(runs: Sequence[tuple[Result, RunTables]]) -> Iterator[str]:
    """What runs of one workload differ in that they should have in common."""
    workloads: dict[tuple[str, str, float | None, int], list[Result]] = {}
    for result, _ in runs:
        info = result.info
        workloads.setdefault((info.mix, info.workload, info.rate_per_s, info.seed), []).append(result)
    for (_, workload, _, _), results in workloads.items():
        served = {result.info.label: result.summary.total.n_finished for result in results}
        if len(set(served.values())) > 1:
            told = ", ".join(f"{label} {n:,}" for label, n in served.items())
            yield f"{workload}, {results[0].info.rate}: systems finished unlike numbers of requests ({told})."
    if len(runs) > 1 and len({result.info.seed for result, _ in runs}) == 1:
        yield "One seed: how far figures vary with chance cannot be seen; +grid.seed=[0,1,2] shows it."


def _of_the_code(runs: Sequence[RunTables]) -> Iterator[str]:
    headers: list[Mapping[str, object]] = [read_json(run.folder / "run.json") for run in runs]
    commits = {str(header.get("commit")) for header in headers}
    if len(commits) > 1:
        yield f"The runs are of {len(commits)} states of the code: {', '.join(sorted(commits))}."
    if any(commit.endswith("-dirty") for commit in commits):
        yield "The code had changes that no commit holds."


def _name(result: Result) -> str:
    return f"{result.info.label} ({result.info.workload}, {result.info.rate})"
