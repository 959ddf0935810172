"""MIRAGE's figures that show what runs came to."""

from __future__ import annotations

from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from conf.paper.drawn import Drawn, Numbers
from policies.types import GB, NS_PER_S
from traces.claims import METRICS, Result
from traces.plots.paper import Bars, Lines, draw
from traces.plots.sweep import PANELS, against_rate
from traces.results.folder import read_run
from traces.results.metrics import quantiles

NS_PER_MS = 10**6


LATENCIES = (
    ("TBT: mean gap (ms)", ("mean_gap_p50", "mean_gap_p99")),
    ("TTFT (ms)", ("ttft_p50", "ttft_p99")),
)
"""The rows of figure 17."""


def rates(drawn: Drawn) -> Numbers:
    """Figures 8, 11 and 14: P99 TBT, P99 TTFT and tokens/s against the rate, a row for each data set."""
    against_rate(drawn.results, drawn.figure)
    base = drawn.systems[0]
    return {
        f"{metric}_ratio_{system}": drawn.mean(system, metric) / drawn.mean(base, metric)
        for system in drawn.systems[1:]
        for metric in ("mean_gap_p99", *(panel.metric for panel in PANELS))
    }


def bars(drawn: Drawn) -> Numbers:
    """Figures 9 and 10: groups of bars, one for each pair of rates or order of lengths."""
    points: dict[tuple[str, float | None], str] = {}
    for result in drawn.results:
        points.setdefault((result.info.workload, result.info.rate_per_s), _by_model(result))
    row = [
        Bars(
            title="",
            ylabel=panel.label,
            groups=[*points.values()],
            values={
                system: [drawn.mean(system, panel.metric, rate, workload) / panel.unit for workload, rate in points]
                for system in drawn.systems
            },
            log=panel.scale == "log",
        )
        for panel in PANELS
    ]
    names = ", ".join(model.name for model in drawn.results[0].info.models)
    draw(f"{drawn.results[0].info.mix}: {names}", [row], drawn.figure, panel_inches=(4.6, 2.8))
    return {}


def _by_model(result: Result) -> str:
    """Rate and, where they have lengths of their own, tokens of each model, model after model."""
    config: Any = result.info.config
    weights = config["workload"]["weights"] or [1] * len(result.info.models)
    rates_per_s = [(result.info.rate_per_s or 0) * weight / sum(weights) for weight in weights]
    lengths = config["lengths_by_model"]
    tokens = [each["n_prompt_tokens"] + each["n_output_tokens"] for each in lengths.values()]
    words = [f"{rate:.2g}/s" for rate in rates_per_s]
    if tokens:
        words = [f"{n} tok.\n{word}" for n, word in zip(tokens, words, strict=True)]
    return "\n".join(words)


def frontier(drawn: Drawn) -> Numbers:
    """What lending brings over links of different speed: change against the baseline."""
    panels: list[Lines] = []
    numbers: dict[str, float] = {}
    base, *others = drawn.systems
    for panel in PANELS:
        by_link = {system: _by_link(drawn, system, panel.metric) for system in drawn.systems}
        changes = {
            system: {gb: value / by_link[base][gb] - 1 for gb, value in by_link[system].items()} for system in others
        }
        panels.append(
            Lines(
                title=panel.label,
                xlabel="link to the device (GB/s)",
                ylabel=f"change against {base} (%)",
                values={
                    system: ([*found], [100 * share for share in found.values()]) for system, found in changes.items()
                },
                log_x=True,
                from_zero=False,
            )
        )
        numbers |= {
            f"{panel.metric}_change_{system}_{gb:g}": share
            for system, found in changes.items()
            for gb, share in found.items()
        }
    draw("Which link makes lending pay", [panels], drawn.figure)
    return numbers


def _by_link(drawn: Drawn, system: str, metric: str) -> dict[float, float]:
    """A figure of merit by bandwidth to the device in GB/s, increasing."""
    found: dict[float, float] = {}
    for result, _ in drawn.runs(system):
        config: Any = result.info.config
        found[config["hardware"]["link"]["h2d_bytes_per_s"] / GB] = METRICS[metric].of(result.summary.total) or nan
    return dict(sorted(found.items()))


def fig1a(drawn: Drawn) -> Numbers:
    """Figure 1(a): latency of a request against the rate, with the KV cache as it is and with ample."""
    latency_s = {
        system: [
            (rate, fmean(_latency_s(folder) for result, folder in drawn.runs(system) if result.info.rate_per_s == rate))
            for rate in drawn.rates()
        ]
        for system in drawn.systems
    }
    panel = Lines(
        title="latency of a request (P50)",
        xlabel="requests/s",
        ylabel="s",
        values={
            system: ([rate for rate, _ in points], [seconds for _, seconds in points])
            for system, points in latency_s.items()
        },
    )
    draw("OPT-13b, ShareGPT", [[panel]], drawn.figure)
    scarce, ample = (dict(latency_s[system]) for system in drawn.systems)
    least, most = min(scarce), max(scarce)
    return {
        "slowdown_at_the_lowest_rate": scarce[least] / ample[least],
        "slowdown_at_the_highest_rate": scarce[most] / ample[most],
        "rise_with_scarce_kv": scarce[most] / scarce[least],
        "rise_with_ample_kv": ample[most] / ample[least],
    }


def _latency_s(folder: Path) -> float:
    """Median over finished requests of finish minus arrival."""
    columns = read_run(folder).columns("requests", ("arrival_ns", "finish_ns", "outcome"))
    done = columns["outcome"] == "finished"
    (median_ns,) = quantiles(columns["finish_ns"][done] - columns["arrival_ns"][done], None, (500,))
    return median_ns / NS_PER_S


def fig15(drawn: Drawn) -> Numbers:
    """Figure 15: tokens/s and tail latency of always m = alpha + 1 (A), always + 2 (B), and the choice (C)."""
    against_rate(drawn.results, drawn.figure)
    return {f"tokens_per_s_{system}": drawn.mean(system, "output_tokens_per_s") for system in drawn.systems}


def fig16(drawn: Drawn) -> Numbers:
    """Figure 16: distribution of TBT with and without dynamic reversion, at each rate.

    Only requests that arrive in the last phase count, if the rate has phases: what came before is the load that had
    layers lent.
    """
    panels: list[Lines] = []
    numbers: dict[str, float] = {}
    for rate in drawn.rates():
        found = {
            system: np.sort(np.concatenate([_late_gaps_ms(folder, result.info.config) for result, folder in of_system]))
            for system in drawn.systems
            if (of_system := [pair for pair in drawn.runs(system) if pair[0].info.rate_per_s == rate])
        }
        panels.append(
            Lines(
                title=f"{rate:g} requests/s",
                xlabel="TBT: mean gap of a request (ms)",
                ylabel="share of requests",
                values={
                    system: (gaps.tolist(), (np.arange(1, len(gaps) + 1) / len(gaps)).tolist())
                    for system, gaps in found.items()
                },
                log_x=True,
                steps=True,
            )
        )
        numbers |= {
            f"tbt_p{percent}_ms_{system}_{rate:g}": float(np.quantile(gaps, percent / 100, method="inverted_cdf"))
            for system, gaps in found.items()
            for percent in (50, 99)
        }
        with_, without = drawn.systems
        for percent in (50, 99):
            ratio = numbers[f"tbt_p{percent}_ms_{with_}_{rate:g}"] / numbers[f"tbt_p{percent}_ms_{without}_{rate:g}"]
            numbers[f"tbt_p{percent}_change_{rate:g}"] = ratio - 1
    draw("Dynamic reversion: distribution of TBT", [panels], drawn.figure)
    return numbers


def _late_gaps_ms(folder: Path, config: Any) -> npt.NDArray[np.float64]:
    """Mean gap of each finished request that arrived in the last phase."""
    after_ns = round(sum(config["workload"]["phase_s"][:-1]) * NS_PER_S)
    columns = read_run(folder).columns("requests", ("arrival_ns", "n_output_tokens", "mean_gap_ns", "outcome"))
    kept = (columns["outcome"] == "finished") & (columns["n_output_tokens"] > 1) & (columns["arrival_ns"] >= after_ns)
    return columns["mean_gap_ns"][kept] / NS_PER_MS


def fig17(drawn: Drawn) -> Numbers:
    """Figure 17: P50 and P99 latency with and without a cap, at each rate; what arrives in the last phase by itself."""
    rows: list[list[Bars]] = []
    numbers: dict[str, float] = {}
    names = [f"{rate:g} requests/s" for rate in drawn.rates()]
    for title, metrics in (
        ("TBT: mean gap (ms)", ("mean_gap_p50", "mean_gap_p99")),
        ("TTFT (ms)", ("ttft_p50", "ttft_p99")),
    ):
        row: list[Bars] = []
        for metric in metrics:
            values = {
                system: [drawn.mean(system, metric, rate) / NS_PER_MS for rate in drawn.rates()]
                for system in drawn.systems
            }
            row.append(
                Bars(title=metric[-3:].upper(), ylabel=title, groups=names, values=values, log=title.startswith("TTFT"))
            )
            for system, found in values.items():
                for rate, value in zip(drawn.rates(), found, strict=True):
                    numbers[f"{metric}_ms_{system}_{rate:g}"] = value
        rows.append(row)
    without, with_ = drawn.systems
    for rate in drawn.rates():
        late = {
            system: np.concatenate([_late_gaps_ms(folder, result.info.config) for result, folder in drawn.runs(system)
                                    if result.info.rate_per_s == rate])
            for system in drawn.systems
        }  # fmt: skip
        for percent in (50, 99):
            after, before = (
                float(np.quantile(late[system], percent / 100, method="inverted_cdf")) for system in (with_, without)
            )
            numbers[f"late_tbt_p{percent}_change_{rate:g}"] = after / before - 1
    draw("What capping the share of lent layers does", rows, drawn.figure)
    return numbers
