"""The one place where rows become figures.

Rules:

- **Quantile**: the smallest value whose cumulative weight reaches the share (numpy's
  ``inverted_cdf``). It is always a value that occurred, and exact in integers.
- **Over requests** means over the finished ones. Dropped and unfinished requests have no
  latency; they are counted, and a comparison in which they differ says so.
- **Over gaps** means every gap between two tokens of any request, also unfinished ones.
- **Throughput** is the tokens of finished requests over the makespan, from the first
  arrival to the last finish of the whole run, so that models add up.
- **Lends and reverts** are loans that a change of target begins and ends; a **flip** is
  a home lent again within a second of its return (``traces/results/loans.py``).

What a run did not keep is absent from its figures: without ``steps`` the busy and the
stalled time, without ``memory`` the peak of what was lent, without ``decisions`` the loans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.journal import GapCause
from policies.types import NS_PER_S
from traces.results.folder import RunTables, State, read_json, read_run, write_json
from traces.results.loans import Loan, loans_of, n_flips
from traces.results.rows import label

if TYPE_CHECKING:
    import numpy.typing as npt

    from traces.results.tables import Columns

    Ints = npt.NDArray[np.int64]

_CAUSES = tuple(label(cause) for cause in GapCause)

_OF_A_REQUEST = (
    "model",
    "arrival_ns",
    "n_prompt_tokens",
    "n_output_tokens",
    "first_token_ns",
    "finish_ns",
    "outcome",
    "n_preemptions",
    "n_recomputed_tokens",
    "n_hit_tokens",
    "mean_gap_ns",
    "max_gap_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of a duration over ``n`` requests or gaps; ``None`` where there are none."""

    n: int
    mean_ns: float | None
    p50_ns: int | None
    p90_ns: int | None
    p99_ns: int | None
    p999_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one model, or all of a run together, has done. ``None``: the table was not kept.

    Attributes:
        ttft: over requests, first token minus arrival.
        gap: over gaps (TBT).
        mean_gap, max_gap: over requests with two tokens or more, their mean gap (TPOT) and their largest.
        gap_share: share of the gaps by cause.
        tail_share: the same of the gaps above the P99; empty if there are none.
        n_preemptions, n_recomputed_tokens, n_hit_tokens: over all requests, unfinished ones too.
        peak_lent_bytes: most homes of this model that served as KV cache at one time.
        n_lends, n_reverts, n_flips: loans of its homes.
        busy_ns, stall_ns: duration of its steps, and what they waited for memory that was not in place.
    """

    n_finished: int
    n_dropped: int
    n_unfinished: int
    ttft: Spread
    gap: Spread
    mean_gap: Spread
    max_gap: Spread
    gap_share: Mapping[str, float]
    tail_share: Mapping[str, float]
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    n_preemptions: int
    n_recomputed_tokens: int
    n_hit_tokens: int
    peak_lent_bytes: int | None
    n_lends: int | None
    n_reverts: int | None
    n_flips: int | None
    busy_ns: int | None
    stall_ns: int | None

    @property
    def stall_share(self) -> float | None:
        """Share of the steps' duration that was waiting."""
        return None if self.stall_ns is None or not self.busy_ns else self.stall_ns / self.busy_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in figures: of all models together, and of each in the order of the tables."""

    state: State
    total: Figures
    by_model: tuple[Figures, ...]


def quantiles(values: Ints, weights: Ints | None, per_mille: tuple[int, ...]) -> tuple[int, ...]:
    """Find weighted quantiles: for each the smallest value whose cumulative weight reaches it.

    Args:
        values: (n,), in any order, n >= 1.
        weights: (n,), positive; a value of weight w counts as w equal values. ``None``: each counts once.
        per_mille: shares in thousandths, 1..1000; integers, so that no rounding decides.
    """
    if weights is None:
        ordered, reached = np.sort(values), np.arange(1, len(values) + 1)
    else:
        order = np.argsort(values, kind="stable")
        ordered, reached = values[order], np.cumsum(weights[order])
    needed = np.array(per_mille) * reached[-1]
    return tuple(ordered[np.searchsorted(reached * 1000, needed)].tolist())


def spread(values: Ints, weights: Ints | None = None) -> Spread:
    """Describe a distribution; every value counts once without weights."""
    n = len(values) if weights is None else int(weights.sum())
    if not n:
        return Spread(n=0, mean_ns=None, p50_ns=None, p90_ns=None, p99_ns=None, p999_ns=None)
    p50, p90, p99, p999 = quantiles(values, weights, (500, 900, 990, 999))
    total_ns = int(values.sum() if weights is None else values @ weights)
    return Spread(n=n, mean_ns=total_ns / n, p50_ns=p50, p90_ns=p90, p99_ns=p99, p999_ns=p999)


def summarise(run: RunTables) -> Summary:
    """Work out the figures of a run by the rules above."""
    facts = _facts(run)
    singles = [(model,) for model in range(len(run.info.models))]
    every = tuple(model for (model,) in singles)
    of = {scope: _figures(facts, scope) for scope in dict.fromkeys([every, *singles])}
    return Summary(state=run.state, total=of[every], by_model=tuple(of[single] for single in singles))


def write_summary(folder: Path) -> Summary:
    """Summarise a run folder, and leave the figures in its summary.json."""
    summary = summarise(read_run(folder))
    write_json(folder / "summary.json", asdict(summary))
    return summary


def read_summary(folder: Path) -> Summary:
    """Read the figures that ``write_summary`` left.

    Raises:
        ValueError: there are none.
    """
    document = read_json(folder / "summary.json")
    total, *by_model = (_figures_from(part) for part in [document["total"], *document["by_model"]])
    return Summary(state=document["state"], total=total, by_model=tuple(by_model))


def summary_of(folder: Path) -> Summary:
    """Read the figures of a run; work them out if it was stopped before they were left."""
    return read_summary(folder) if (folder / "summary.json").exists() else write_summary(folder)


def _figures_from(document: Mapping[str, Any]) -> Figures:
    given = dict(document)
    for name in ("ttft", "gap", "mean_gap", "max_gap"):
        given[name] = Spread(**document[name])
    return Figures(**given)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What figures are worked out from. ``None``: the table was not kept.

    Attributes:
        requests, gaps, memory: columns of these tables.
        makespan_ns: ``None`` if nothing finished.
        busy_ns, stall_ns: of the steps of each model.
        loans: of every model, as they begin and end.
    """

    requests: Columns
    gaps: Columns
    memory: Columns | None
    makespan_ns: int | None
    busy_ns: Sequence[int] | None
    stall_ns: Sequence[int] | None
    loans: Sequence[Loan] | None


def _facts(run: RunTables) -> _Facts:
    requests = run.columns("requests", _OF_A_REQUEST)
    busy_ns, stall_ns = _step_sums(run) if "steps" in run.kept else (None, None)
    return _Facts(
        requests=requests,
        gaps=run.columns("gaps", ("model", "cause", "gap_ns", "n")),
        memory=run.columns("memory", ("at_ns", "model", "lent_bytes")) if "memory" in run.kept else None,
        makespan_ns=_makespan_ns(requests),
        busy_ns=busy_ns,
        stall_ns=stall_ns,
        loans=loans_of(run) if "decisions" in run.kept else None,
    )


def _makespan_ns(requests: Columns) -> int | None:
    finish_ns = requests["finish_ns"][requests["outcome"] == "finished"]
    return int(finish_ns.max() - requests["arrival_ns"].min()) if len(finish_ns) else None


def _step_sums(run: RunTables) -> tuple[list[int], list[int]]:
    """Add up duration and stalls of the steps of each model."""
    busy_ns, stall_ns = [0] * len(run.info.models), [0] * len(run.info.models)
    for steps in run.pieces("steps", ("model", "start_ns", "end_ns", "stall_ns")):
        lasted_ns = steps["end_ns"] - steps["start_ns"]
        for model in range(len(run.info.models)):
            own = steps["model"] == model
            busy_ns[model] += int(lasted_ns[own].sum())
            stall_ns[model] += int(steps["stall_ns"][own].sum())
    return busy_ns, stall_ns


def _figures(facts: _Facts, models: tuple[int, ...]) -> Figures:
    requests = _of_models(facts.requests, models)
    finished = _rows(requests, requests["outcome"] == "finished")
    spoke = _rows(finished, finished["n_output_tokens"] > 1)
    n_dropped = int((requests["outcome"] == "dropped").sum())
    gaps = _of_models(facts.gaps, models)
    gap = spread(gaps["gap_ns"], gaps["n"])
    n_finished, n_output = len(finished["model"]), int(finished["n_output_tokens"].sum())
    n_total = n_output + int(finished["n_prompt_tokens"].sum())
    own = None if facts.loans is None else [loan for loan in facts.loans if loan.lender in models]
    return Figures(
        n_finished=n_finished,
        n_dropped=n_dropped,
        n_unfinished=len(requests["model"]) - n_finished - n_dropped,
        ttft=spread(finished["first_token_ns"] - finished["arrival_ns"]),
        gap=gap,
        mean_gap=spread(spoke["mean_gap_ns"]),
        max_gap=spread(spoke["max_gap_ns"]),
        gap_share=_share_by_cause(gaps),
        tail_share=_share_by_cause(_rows(gaps, gaps["gap_ns"] > (gap.p99_ns or 0))),
        output_tokens_per_s=None if not facts.makespan_ns else n_output * NS_PER_S / facts.makespan_ns,
        total_tokens_per_s=None if not facts.makespan_ns else n_total * NS_PER_S / facts.makespan_ns,
        n_preemptions=int(requests["n_preemptions"].sum()),
        n_recomputed_tokens=int(requests["n_recomputed_tokens"].sum()),
        n_hit_tokens=int(requests["n_hit_tokens"].sum()),
        peak_lent_bytes=None if facts.memory is None else _peak_lent_bytes(_of_models(facts.memory, models)),
        n_lends=None if own is None else sum(loan.begins for loan in own),
        n_reverts=None if own is None else sum(not loan.begins for loan in own),
        n_flips=None if own is None else n_flips(own),
        busy_ns=None if facts.busy_ns is None else sum(facts.busy_ns[model] for model in models),
        stall_ns=None if facts.stall_ns is None else sum(facts.stall_ns[model] for model in models),
    )


def _rows(columns: Columns, chosen: npt.NDArray[np.bool_]) -> Columns:
    return columns if chosen.all() else {name: column[chosen] for name, column in columns.items()}


def _of_models(columns: Columns, models: tuple[int, ...]) -> Columns:
    return _rows(columns, np.isin(columns["model"], models))


def _share_by_cause(gaps: Columns) -> dict[str, float]:
    counts = {cause: int(gaps["n"][gaps["cause"] == cause].sum()) for cause in _CAUSES}
    n = sum(counts.values())
    return {cause: count / n for cause, count in counts.items()} if n else {}


def _peak_lent_bytes(memory: Columns) -> int:
    """Highest sum over models, each holding its last value; rows of one instant count together."""
    at_ns, models, lent = (memory[name] for name in ("at_ns", "model", "lent_bytes"))
    change = np.empty_like(lent)
    for model in np.unique(models):
        change[models == model] = np.diff(lent[models == model], prepend=0)
    last_of_instant = np.append(at_ns[1:] != at_ns[:-1], True)[: len(at_ns)]
    return int(np.cumsum(change)[last_of_instant].max(initial=0))
