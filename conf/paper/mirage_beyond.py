"""Figures beyond the MIRAGE paper: other workloads, and what its choices of placement cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.paper.drawn import Drawn, Numbers
from policies.memory.ops import Load, transition
from policies.memory.residency import Loan, Residency, Target
from policies.types import GB, GIB, NS_PER_S
from traces.claims import Result
from traces.plots.paper import Bars, Lines, draw
from traces.results.folder import read_run
from traces.results.loans import loans_of
from traces.results.metrics import quantiles

Floats = npt.NDArray[np.float64]


def phases(drawn: Drawn) -> Numbers:
    """TTFT and TBT of what arrived in each phase of the rate, a row for each phase."""
    names = ("TTFT (s)", "mean gap (s)")
    lasts_s: Sequence[float] = _config(drawn.results[0])["workload"]["phase_s"]
    rates = drawn.rates()
    numbers: dict[str, float] = {}
    rows: list[list[Bars]] = []
    for phase, factor in enumerate(_config(drawn.results[0])["workload"]["phase_factors"]):
        row: list[Bars] = []
        for nth, name in enumerate(names):
            for percent in (50, 99):
                values = {
                    system: [
                        float(np.quantile(_of_phase(drawn, system, rate, phase, lasts_s)[nth], percent / 100,
                                          method="inverted_cdf"))
                        for rate in rates
                    ]
                    for system in drawn.systems
                }  # fmt: skip
                groups = [f"{rate * factor:.3g}/s" for rate in rates]
                row.append(Bars(title=f"P{percent}, rate x {factor:g}", ylabel=name, groups=groups, values=values))
                for system, found in values.items():
                    for rate, value in zip(rates, found, strict=True):
                        numbers[f"{('ttft', 'mean_gap')[nth]}_p{percent}_s_{system}_{rate:g}_phase_{phase}"] = value
        rows.append(row)
    draw("Peak and off-peak", rows, drawn.figure)
    return numbers


def _of_phase(drawn: Drawn, system: str, rate: float, phase: int, lasts_s: Sequence[float]) -> tuple[Floats, Floats]:
    """TTFT and mean gap, s, of the finished requests of a system that arrived in a phase of the first cycle."""
    ends_ns = [round(end_s * NS_PER_S) for end_s in accumulate([0.0, *lasts_s])]
    found: list[tuple[Floats, Floats]] = []
    for result, folder in drawn.runs(system):
        if result.info.rate_per_s == rate:
            columns = read_run(folder).columns(
                "requests", ("arrival_ns", "first_token_ns", "n_output_tokens", "mean_gap_ns", "outcome")
            )
            arrival_ns = columns["arrival_ns"]
            kept = (columns["outcome"] == "finished") & (columns["n_output_tokens"] > 1)
            kept &= (arrival_ns >= ends_ns[phase]) & (arrival_ns < ends_ns[phase + 1])
            ttft_ns = columns["first_token_ns"][kept] - arrival_ns[kept]
            found.append((ttft_ns / NS_PER_S, columns["mean_gap_ns"][kept] / NS_PER_S))
    return np.concatenate([ttft for ttft, _ in found]), np.concatenate([gap for _, gap in found])


def agents(drawn: Drawn) -> Numbers:
    """Latency of a row of agents, from its first arrival to its last answer, and tokens/s, against the rate."""
    latency: dict[str, list[tuple[float, float]]] = {}
    for system in drawn.systems:
        latency[system] = [
            (_mean_over(drawn, system, rate, _row_p50_s), _mean_over(drawn, system, rate, _row_p99_s))
            for rate in drawn.rates()
        ]
    panels = [
        Lines(
            title=f"{name} of a row",
            xlabel="rows/s",
            ylabel="s",
            values={system: (drawn.rates(), [pair[nth] for pair in pairs]) for system, pairs in latency.items()},
        )
        for nth, name in enumerate(("P50", "P99"))
    ]
    tokens = {
        system: (drawn.rates(), [drawn.mean(system, "output_tokens_per_s", rate) for rate in drawn.rates()])
        for system in drawn.systems
    }
    panels.append(Lines(title="throughput", xlabel="rows/s", ylabel="output tokens/s", values=tokens))
    draw("Agents in a row", [panels], drawn.figure)
    base = drawn.systems[0]
    return {
        f"row_p{percent}_change_{system}_{rate:g}": own[nth] / before[nth] - 1
        for system in drawn.systems[1:]
        for rate, own, before in zip(drawn.rates(), latency[system], latency[base], strict=True)
        for nth, percent in enumerate((50, 99))
    }


def _row_p50_s(result: Result, folder: Path) -> float:
    return _row_quantile_s(result, folder, 500)


def _row_p99_s(result: Result, folder: Path) -> float:
    return _row_quantile_s(result, folder, 990)


def _row_quantile_s(result: Result, folder: Path, per_mille: int) -> float:
    """Quantile over the rows of which the last model has answered (see ``traces/workload/agents.py``)."""
    columns = read_run(folder).columns("requests", ("request_id", "model", "arrival_ns", "finish_ns", "outcome"))
    row = columns["request_id"] // len(result.info.models)
    first = columns["model"] == 0
    begin_ns = dict(zip(row[first].tolist(), columns["arrival_ns"][first].tolist(), strict=True))
    last = (columns["model"] == len(result.info.models) - 1) & (columns["outcome"] == "finished")
    took_ns = columns["finish_ns"][last] - np.array([begin_ns[each] for each in row[last].tolist()], dtype=np.int64)
    (found_ns,) = quantiles(took_ns, None, (per_mille,))
    return found_ns / NS_PER_S


def starvation(drawn: Drawn) -> Numbers:
    """TTFT of the model that is seldom asked, by the cap on lent layers; level: nothing lent."""
    base, *others = [*dict.fromkeys(result.info.system for result in drawn.results)]
    panels: list[Lines] = []
    numbers: dict[str, float] = {}
    for name, per_mille in (("P50", 500), ("P90", 900), ("most", 1000)):
        curves: dict[str, dict[float, float]] = {system: {} for system in others}
        level = 0.0
        for result, folder in zip(drawn.results, drawn.folders, strict=True):
            seconds = _ttft_s(folder, len(result.info.models) - 1, per_mille)
            if result.info.system == base:
                level = seconds
            else:
                cap = _config(result)["policy"]["mirage"]["max_remapped_fraction"]
                curves[result.info.system][100 * cap] = seconds
                numbers[f"ttft_{name.lower()}_s_{result.info.system}_{100 * cap:g}"] = seconds
        numbers[f"ttft_{name.lower()}_s_{base}"] = level
        values = {system: ([*sorted(curve)], [curve[cap] for cap in sorted(curve)]) for system, curve in curves.items()}
        panels.append(
            Lines(title=f"TTFT, {name}", xlabel="cap (% of layers)", ylabel="s", values=values, levels={base: level})
        )
    draw("Requests to a model whose layers are lent", [panels], drawn.figure)
    return numbers


def _ttft_s(folder: Path, model: int, per_mille: int) -> float:
    columns = read_run(folder).columns("requests", ("model", "arrival_ns", "first_token_ns", "outcome"))
    kept = (columns["model"] == model) & (columns["outcome"] == "finished")
    (found_ns,) = quantiles(columns["first_token_ns"][kept] - columns["arrival_ns"][kept], None, (per_mille,))
    return found_ns / NS_PER_S


def moved(drawn: Drawn) -> Numbers:
    """Bytes of weights fetched because alpha changed (not for the cycle), by system and rate."""
    values: dict[str, list[float]] = {}
    a_change: dict[str, list[float]] = {}
    for system in drawn.systems:
        found = [
            _mean_pair([_moved_bytes(result, folder) for result, folder in drawn.runs(system) if _at(result, rate)])
            for rate in drawn.rates()
        ]
        values[system] = [n_bytes / GB for n_bytes, _ in found]
        a_change[system] = [n_bytes / n / GB if n else 0.0 for n_bytes, n in found]
    groups = [f"{rate:g}/s" for rate in drawn.rates()]
    row = [
        Bars(title="fetched into homes", ylabel="GB", groups=groups, values=values),
        Bars(title="the same, a change of alpha", ylabel="GB", groups=groups, values=a_change),
    ]
    draw("Weights that a change of alpha moves", [row], drawn.figure)
    return {
        f"{name}_{system}_{rate:g}": value
        for name, of in (("moved_gb", values), ("moved_gb_a_change", a_change))
        for system, found in of.items()
        for rate, value in zip(drawn.rates(), found, strict=True)
    }


def _moved_bytes(result: Result, folder: Path) -> tuple[float, float]:
    """Bytes of all loads that the run's decisions led to, and how many decisions changed who has what."""
    layer_bytes = [model["shape"]["layer_bytes"] for model in _config(result)["mix"]["models"].values()]
    n_bytes = n_changes = 0
    for decisions in read_run(folder).pieces("decisions", ("changed", "view", "targets")):
        for row in decisions["changed"].nonzero()[0].tolist():
            view, targets = json.loads(decisions["view"][row]), json.loads(decisions["targets"][row])
            for model, (seen, target) in enumerate(zip(view["models"], targets, strict=True)):
                ops, _ = transition(model, _residency(seen["residency"]), _target(target))
                n_changes += bool(ops)
                n_bytes += layer_bytes[model] * sum(isinstance(op, Load) for op in ops)
    return n_bytes, n_changes


def blocked(drawn: Drawn) -> Numbers:
    """How long lent memory stays away although its borrower could do without it, and how long a loan lasts."""
    values: dict[str, list[list[float]]] = {}
    for system in drawn.systems:
        runs = [
            [_blocked(result, folder) for result, folder in drawn.runs(system) if _at(result, rate)]
            for rate in drawn.rates()
        ]
        values[system] = [[fmean(each) for each in zip(*at_rate, strict=True)] for at_rate in runs]
    names = ("blocked (s)", "a loan lasts (s)", "lent, not in use (GiB, mean)")
    groups = [f"{rate:g}/s" for rate in drawn.rates()]
    row = [
        Bars(title=name, ylabel=name, groups=groups, values={s: [each[nth] for each in v] for s, v in values.items()})
        for nth, name in enumerate(names)
    ]
    draw("What keeps lent layers from coming back", [row], drawn.figure)
    return {
        f"{name}_{system}_{rate:g}": each[nth]
        for nth, name in enumerate(("blocked_s", "loan_s", "idle_lent_gib"))
        for system, found in values.items()
        for rate, each in zip(drawn.rates(), found, strict=True)
    }


def _blocked(result: Result, folder: Path) -> tuple[float, float, float]:
    """Seconds (summed over borrowers) in which a borrower had as many free blocks as all that it borrows and 10 % more,
    and still borrowed; mean duration of a loan, s; memory that is lent and holds nothing, GiB, mean over the run.
    """
    run = read_run(folder)
    columns = run.columns("memory", ("at_ns", "model", "n_base_blocks", "n_base_used", "n_lent_blocks", "n_lent_used"))
    blocked_ns = idle_bytes_ns = 0
    for model, info in enumerate(result.info.models):
        own = columns["model"] == model
        at_ns, base, base_used, lent, lent_used = (
            columns[name][own] for name in ("at_ns", "n_base_blocks", "n_base_used", "n_lent_blocks", "n_lent_used")
        )
        lasts_ns = np.diff(at_ns, append=at_ns[-1:])
        free = base + lent - base_used - lent_used
        could_go = (lent > 0) & (free >= lent + base // SPARE)
        blocked_ns += int(lasts_ns[could_go].sum())
        idle_bytes_ns += int((lasts_ns * (lent - lent_used)).sum()) * info.block_bytes
    began: dict[tuple[int, int], int] = {}
    loans_ns: list[int] = []
    for loan in loans_of(run):
        home = (loan.lender, loan.home)
        if loan.begins:
            began[home] = loan.at_ns
        else:
            loans_ns.append(loan.at_ns - began.pop(home))
    whole_ns = int(columns["at_ns"][-1] - columns["at_ns"][0])
    mean_s = fmean(loans_ns) / NS_PER_S if loans_ns else 0.0
    return blocked_ns / NS_PER_S, mean_s, idle_bytes_ns / whole_ns / GIB


SPARE = 10
"""MIRAGE keeps a tenth of a borrower's blocks free when it takes a range back (``spare_margin``)."""


def _mean_over(drawn: Drawn, system: str, rate: float, of: Callable[[Result, Path], float]) -> float:
    return fmean(of(result, folder) for result, folder in drawn.runs(system) if _at(result, rate))


def _mean_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return fmean(one for one, _ in pairs), fmean(two for _, two in pairs)


def _at(result: Result, rate: float) -> bool:
    return result.info.rate_per_s == rate


def _config(result: Result) -> Any:
    return result.info.config


def _residency(seen: Any) -> Residency:
    return Residency(
        homes=tuple(seen["homes"]),
        slots=tuple(seen["slots"]),
        loans=tuple(Loan(**loan) for loan in seen["loans"]),
        loading=tuple((layer, home) for layer, home in seen["loading"]),
    )


def _target(wanted: Any) -> Target:
    return Target(
        cycling=tuple(wanted["cycling"]),
        n_slots=wanted["n_slots"],
        loans=tuple(Loan(**loan) for loan in wanted["loans"]),
    )
