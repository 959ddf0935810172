"""Figures of sessions, by the rules of VAMP VI-A: one number by name for a run, a row by turn and by bin of time.

- TTFT, queue time and hit rate are over the measured turns (``SessionSettings.measured``); the hit rate is that of
  the first time that a turn is scheduled, as vLLM counts it.
- Turns/s is over the measured window, and so are preemptions where it says so (a preemption counts where its turn
  finished). TPOT is the mean over all finished turns but those that ``without_first_turn`` leaves out.
- Where sessions have a window, tokens/s and the share of recorded turns are of what is done when it closes; the tokens
  of an answer under way then come evenly from the first to the last.
- Use of the KV cache is weighted by time. Requests wait from their arrival until they are first scheduled.
- Decisions are the answers to evictions that took effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from policies.types import GIB, NS_PER_S
from traces.results.metrics import quantiles
from traces.results.tables import ints, present, where
from traces.sessions.turns import Turns

if TYPE_CHECKING:
    import numpy.typing as npt

    from traces.results.folder import RunTables
    from traces.results.tables import Frame

    Numbers = npt.NDArray[np.int64]

MS = 10**6
BIN_NS = 30 * 60 * NS_PER_S
"""Figure 6 has bins of half an hour."""

TTFT_BUDGETS_S = (1, 2, 5, 10, 20)
TPOT_BUDGETS_MS = (150, 200, 250, 300, 350)
"""The grid of figure 10b: the TPOT budgets are in the text, those of TTFT are ours."""

REASONS = ("evict", "offload", "offload_and_evict", "preempt")

Figures = Mapping[str, float | int | None]


def figures_of(run: RunTables, turns: Turns) -> Figures:
    """All single numbers of a run, each with its unit at the end of its name."""
    return {
        **_latencies(turns),
        **_last_bin(run, turns),
        **(_pool(run) if "memory" in run.kept else {}),
        **(_decisions(run) if "decisions" in run.kept else {}),
        **_within_budgets(turns),
    }


def by_turn(turns: Turns) -> Iterator[Figures]:
    """TTFT for each number of a turn, over all sessions that got so far."""
    ttft_ns = turns.columns["first_token_ns"] - turns.columns["arrival_ns"]
    for number in range(int(turns.number.max(initial=-1)) + 1):
        of = ttft_ns[turns.number == number]
        if len(of):
            p50, p90 = (value / NS_PER_S for value in quantiles(of, None, (500, 900)))
            yield {"turn": number, "n_turns": len(of), "ttft_p50_s": p50, "ttft_p90_s": p90}


def by_progress(turns: Turns) -> Iterator[Figures]:
    """TTFT of turns in the order of their first tokens until figures end, as many at a time as warm the server up.

    The first bin is the warm-up, which figures leave out (figure 7: "after the first").
    """
    _, end_ns = turns.window_ns()
    spoke_ns = turns.columns["first_token_ns"]
    order = np.argsort(spoke_ns, kind="stable")
    order = order[spoke_ns[order] < end_ns]
    ttft_ns, width = (spoke_ns - turns.columns["arrival_ns"])[order], turns.settings.warm_up_turns
    for number, begin in enumerate(range(0, len(order), width)):
        of = ttft_ns[begin : begin + width]
        yield {"bin": number, "n_turns": len(of), "ttft_p90_s": quantiles(of, None, (900,))[0] / NS_PER_S}


def by_time(run: RunTables, turns: Turns) -> Iterator[Figures]:
    """What happened in each half hour."""
    _, end_ns = turns.window_ns()
    for begin_ns in range(0, max(end_ns, 1), BIN_NS):
        yield {"begin_s": begin_ns / NS_PER_S, **_between(run, turns, begin_ns, min(begin_ns + BIN_NS, end_ns))}


def _latencies(turns: Turns) -> Figures:
    is_measured, (begin_ns, end_ns) = turns.measured(), turns.window_ns()
    of, finish_ns = turns.chosen(is_measured), turns.columns["finish_ns"]
    in_window = (finish_ns >= begin_ns) & (finish_ns < end_ns)
    preempted = turns.columns["n_preemptions"]
    gaps_ns = turns.chosen(is_measured if turns.settings.measured == "without_first_turn" else finish_ns >= 0)
    ttft_s = _spread("ttft", of["first_token_ns"] - of["arrival_ns"], NS_PER_S, "s")
    spoke = gaps_ns["n_output_tokens"] > 1
    n_done, span_s = int(in_window.sum()), (end_ns - begin_ns) / NS_PER_S
    n_prompt = int(of["n_prompt_tokens"].sum())
    n_by_then = int((finish_ns < end_ns).sum()) if turns.settings.window_s else len(finish_ns)
    return {
        "n_turns": len(finish_ns),
        "n_measured_turns": int(is_measured.sum()),
        "recorded_turns_percent": None if not turns.n_recorded else 100 * n_by_then / turns.n_recorded,
        "window_s": span_s,
        **ttft_s,
        "queue_mean_s": _mean((of["scheduled_ns"] - of["arrival_ns"]) / NS_PER_S),
        "tpot_mean_ms": _mean(gaps_ns["mean_gap_ns"][spoke] / MS),
        "turns_per_s": n_done / span_s if span_s else None,
        "output_tokens_per_s": _output_tokens_per_s(turns),
        "hit_percent": 100 * int(of["n_first_hit_tokens"].sum()) / n_prompt if n_prompt else None,
        "preemptions": int(preempted.sum()),
        "window_preemptions": int(preempted[in_window].sum()),
        "preemptions_per_1k_turns": 1000 * int(preempted[in_window].sum()) / n_done if n_done else None,
        "prompt_mean_tokens": _mean(of["n_prompt_tokens"]),
    }


def _output_tokens_per_s(turns: Turns) -> float | None:
    """Of the whole window if there is one, else until the last answer ends."""
    columns, window_s = turns.columns, turns.settings.window_s
    first_ns, finish_ns, n_tokens = (columns[name] for name in ("first_token_ns", "finish_ns", "n_output_tokens"))
    if window_s is None:
        makespan_s = int(finish_ns.max(initial=0)) / NS_PER_S
        return int(n_tokens.sum()) / makespan_s if makespan_s else None
    end_ns = window_s * NS_PER_S
    share = np.clip((end_ns - first_ns) / np.maximum(finish_ns - first_ns, 1), 0, 1)
    return float(np.where(first_ns <= end_ns, 1 + (n_tokens - 1) * share, 0).sum()) / window_s


def _last_bin(run: RunTables, turns: Turns) -> Figures:
    """The last half hour of the window."""
    _, end_ns = turns.window_ns()
    found = _between(run, turns, max(0, end_ns - BIN_NS), end_ns)
    return {f"last_30min_{name}": value for name, value in found.items()}


def _between(run: RunTables, turns: Turns, begin_ns: int, end_ns: int) -> Figures:
    columns = turns.columns
    finished = (columns["finish_ns"] >= begin_ns) & (columns["finish_ns"] < end_ns)
    spoke = (columns["first_token_ns"] >= begin_ns) & (columns["first_token_ns"] < end_ns)
    ttft_ns = (columns["first_token_ns"] - columns["arrival_ns"])[spoke]
    waits_ns = np.clip(columns["scheduled_ns"], begin_ns, end_ns) - np.clip(columns["arrival_ns"], begin_ns, end_ns)
    span_ns = end_ns - begin_ns
    return {
        "ttft_mean_s": _mean(ttft_ns / NS_PER_S),
        "preemptions": int(columns["n_preemptions"][finished].sum()),
        "waiting": int(waits_ns.sum()) / span_ns if span_ns else None,
        "kv_used": _kv_used(run, begin_ns, end_ns) if "memory" in run.kept and span_ns else None,
    }


def _kv_used(run: RunTables, begin_ns: int, end_ns: int) -> float | None:
    """Share of the blocks that are in use, on average over time."""
    names = ("at_ns", "n_base_blocks", "n_base_used", "n_lent_blocks", "n_lent_used")
    at_ns, n_base, base_used, n_lent, lent_used = (run.columns("memory", names)[name] for name in names)
    if not len(at_ns):
        return None
    share = (base_used + lent_used) / (n_base + n_lent)
    until_ns = np.append(at_ns[1:], end_ns)
    lasted_ns = np.clip(until_ns, begin_ns, end_ns) - np.clip(at_ns, begin_ns, end_ns)
    return float(share @ lasted_ns / lasted_ns.sum()) if lasted_ns.sum() else None


def _pool(run: RunTables) -> Figures:
    """KV memory of a GPU before and after what was lent, at its most."""
    columns = run.columns("memory", ("lent_bytes", "n_base_blocks", "n_lent_blocks", "slot_bytes"))
    block_bytes = run.info.models[0].block_bytes
    base = int(columns["n_base_blocks"].max(initial=0)) * block_bytes
    most = int((columns["n_base_blocks"] + columns["n_lent_blocks"]).max(initial=0)) * block_bytes
    return {
        "pool_gib": base / GIB,
        "most_pool_gib": most / GIB,
        "pool_ratio": most / base if base else None,
        "lent_gib": int(columns["lent_bytes"].max(initial=0)) / GIB,
        "staging_gib": int(columns["slot_bytes"].max(initial=0)) / GIB,
    }


def _decisions(run: RunTables) -> Figures:
    rows = run.decisions
    assert rows is not None
    asked = where(rows, "ask", ["eviction"])
    acted = where(asked, "changed", [True])
    counts = {f"{reason}_decisions": len(where(acted, "reason", [reason])) for reason in REASONS}
    return {"controller_calls": len(asked), **counts, **_medians_ms(where(acted, "reason", ["evict"]))}


def _medians_ms(rows: Frame) -> Figures:
    """Of what evicting and offloading would have cost, where they could be done."""
    found: dict[str, float | None] = {}
    for name in ("evict_cost", "offload_cost"):
        known = ints(present(rows, f"{name}_ns"), f"{name}_ns")
        found[f"median_{name}_ms"] = float(np.median(known)) / MS if len(known) else None
    return found


def _within_budgets(turns: Turns) -> Figures:
    """Turns/s that keep both budgets (Q of figure 10b), for each pair."""
    of, (begin_ns, end_ns) = turns.chosen(turns.measured()), turns.window_ns()
    ttft_ns, tpot_ns = of["first_token_ns"] - of["arrival_ns"], np.nan_to_num(of["mean_gap_ns"].astype(float))
    span_s = (end_ns - begin_ns) / NS_PER_S
    if not span_s:
        return {}
    return {
        f"turns_per_s_ttft{ttft_s}_tpot{tpot_ms}": int(
            ((ttft_ns <= ttft_s * NS_PER_S) & (tpot_ns <= tpot_ms * MS)).sum()
        )
        / span_s
        for ttft_s in TTFT_BUDGETS_S
        for tpot_ms in TPOT_BUDGETS_MS
    }


def _spread(name: str, values_ns: Numbers, unit_ns: int, unit: str) -> Figures:
    names: Sequence[str] = ("p50", "p90", "p99")
    if not len(values_ns):
        return {f"{name}_{each}_{unit}": None for each in ("mean", *names)}
    found = quantiles(values_ns, None, (500, 900, 990))
    spread = {f"{name}_{each}_{unit}": value / unit_ns for each, value in zip(names, found, strict=True)}
    return {f"{name}_mean_{unit}": float(values_ns.mean()) / unit_ns, **spread}


def _mean(values: npt.NDArray[np.float64] | Numbers) -> float | None:
    return float(values.mean()) if len(values) else None
