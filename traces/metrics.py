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
  a home lent again within a second of its return.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policies.journal import GapCause
from policies.types import NS_PER_S
from traces.folder import RunTables, State, read_json, read_run, write_json
from traces.tables import above, ints, present, texts, where

if TYPE_CHECKING:
    import numpy.typing as npt

    from traces.tables import Frame

    Ints = npt.NDArray[np.int64]

FLIP_NS = NS_PER_S
"""Ours: a home lent again within this time of its return should not have been returned."""

_CAUSES = tuple(cause.name.lower() for cause in GapCause)


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


def quantiles(values: Ints, weights: Ints, per_mille: tuple[int, ...]) -> tuple[int, ...]:
    """Find weighted quantiles: for each the smallest value whose cumulative weight reaches it.

    Args:
        values: (n,), in any order, n >= 1.
        weights: (n,), positive; a value of weight w counts as w equal values.
        per_mille: shares in thousandths, 1..1000; integers, so that no rounding decides.
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    needed = np.array(per_mille) * reached[-1]
    return tuple(values[order][np.searchsorted(reached * 1000, needed)].tolist())


def spread(values: Ints, weights: Ints | None = None) -> Spread:
    """Describe a distribution; every value counts once without weights."""
    counts = np.ones_like(values) if weights is None else weights
    n = int(counts.sum())
    if not n:
        return Spread(n=0, mean_ns=None, p50_ns=None, p90_ns=None, p99_ns=None, p999_ns=None)
    p50, p90, p99, p999 = quantiles(values, counts, (500, 900, 990, 999))
    return Spread(n=n, mean_ns=int(values @ counts) / n, p50_ns=p50, p90_ns=p90, p99_ns=p99, p999_ns=p999)


def summarise(run: RunTables) -> Summary:
    """Work out the figures of a run by the rules above."""
    makespan_ns = _makespan_ns(run.requests)
    changes = None if run.decisions is None else _loan_changes(run.decisions)
    scopes: list[tuple[int, ...]] = [(model,) for model in range(len(run.info.models))]
    total, *by_model = (_figures(run, scope, makespan_ns, changes) for scope in [sum(scopes, ()), *scopes])
    return Summary(state=run.state, total=total, by_model=tuple(by_model))


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


def _makespan_ns(requests: Frame) -> int | None:
    finished = where(requests, "outcome", ["finished"])
    if not len(finished):
        return None
    return int(ints(finished, "finish_ns").max() - ints(requests, "arrival_ns").min())


def _figures(
    run: RunTables, models: tuple[int, ...], makespan_ns: int | None, loans: Sequence[_Loan] | None
) -> Figures:
    requests = where(run.requests, "model", models)
    finished = where(requests, "outcome", ["finished"])
    dropped = where(requests, "outcome", ["dropped"])
    spoke = present(finished, "mean_gap_ns")
    gaps = where(run.gaps, "model", models)
    gap = spread(ints(gaps, "gap_ns"), ints(gaps, "n"))
    n_output = int(ints(finished, "n_output_tokens").sum())
    n_total = n_output + int(ints(finished, "n_prompt_tokens").sum())
    steps = None if run.steps is None else where(run.steps, "model", models)
    memory = None if run.memory is None else where(run.memory, "model", models)
    own = None if loans is None else [loan for loan in loans if loan.lender in models]
    return Figures(
        n_finished=len(finished),
        n_dropped=len(dropped),
        n_unfinished=len(requests) - len(finished) - len(dropped),
        ttft=spread(ints(finished, "first_token_ns") - ints(finished, "arrival_ns")),
        gap=gap,
        mean_gap=spread(ints(spoke, "mean_gap_ns")),
        max_gap=spread(ints(spoke, "max_gap_ns")),
        gap_share=_share_by_cause(gaps),
        tail_share=_share_by_cause(above(gaps, "gap_ns", gap.p99_ns or 0)),
        output_tokens_per_s=None if not makespan_ns else n_output * NS_PER_S / makespan_ns,
        total_tokens_per_s=None if not makespan_ns else n_total * NS_PER_S / makespan_ns,
        n_preemptions=int(ints(requests, "n_preemptions").sum()),
        n_recomputed_tokens=int(ints(requests, "n_recomputed_tokens").sum()),
        n_hit_tokens=int(ints(requests, "n_hit_tokens").sum()),
        peak_lent_bytes=None if memory is None else _peak_lent_bytes(memory),
        n_lends=None if own is None else sum(loan.begins for loan in own),
        n_reverts=None if own is None else sum(not loan.begins for loan in own),
        n_flips=None if own is None else _n_flips(own),
        busy_ns=None if steps is None else int((ints(steps, "end_ns") - ints(steps, "start_ns")).sum()),
        stall_ns=None if steps is None else int(ints(steps, "stall_ns").sum()),
    )


def _share_by_cause(gaps: Frame) -> dict[str, float]:
    counts = {cause: int(ints(where(gaps, "cause", [cause]), "n").sum()) for cause in _CAUSES}
    n = sum(counts.values())
    return {cause: count / n for cause, count in counts.items()} if n else {}


def _peak_lent_bytes(memory: Frame) -> int:
    """Highest sum over models, each holding its last value; rows of one instant count together."""
    at_ns, models, lent = (ints(memory, name) for name in ("at_ns", "model", "lent_bytes"))
    change = np.empty_like(lent)
    for model in np.unique(models):
        change[models == model] = np.diff(lent[models == model], prepend=0)
    last_of_instant = np.append(at_ns[1:] != at_ns[:-1], True)[: len(at_ns)]
    return int(np.cumsum(change)[last_of_instant].max(initial=0))


@dataclass(frozen=True, slots=True)
class _Loan:
    """A loan of a home that begins or ends."""

    at_ns: int
    lender: int
    home: int
    begins: bool


def _loan_changes(decisions: Frame) -> list[_Loan]:
    """Every loan that a decision ended or began, in this order within one decision."""
    changes = where(decisions, "changed", [True])
    found: list[_Loan] = []
    for at_ns, view, targets in zip(
        ints(changes, "at_ns").tolist(), texts(changes, "view"), texts(changes, "targets"), strict=True
    ):
        for lender, (model, target) in enumerate(zip(json.loads(view)["models"], json.loads(targets), strict=True)):
            before, after = _loans(model["residency"]["loans"]), _loans(target["loans"])
            found += [_Loan(at_ns, lender, home, begins=False) for home, _ in sorted(before - after)]
            found += [_Loan(at_ns, lender, home, begins=True) for home, _ in sorted(after - before)]
    return found


def _loans(loans: Sequence[Mapping[str, int]]) -> set[tuple[int, int]]:
    return {(loan["home"], loan["borrower"]) for loan in loans}


def _n_flips(loans: Sequence[_Loan]) -> int:
    """Loans that begin within ``FLIP_NS`` of the same home's return; a handover at one instant is none."""
    returned_ns: dict[tuple[int, int], int] = {}
    n_flips = 0
    for loan in loans:
        home = (loan.lender, loan.home)
        if loan.begins:
            n_flips += home in returned_ns and 0 < loan.at_ns - returned_ns[home] <= FLIP_NS
        else:
            returned_ns[home] = loan.at_ns
    return n_flips
