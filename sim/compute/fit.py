"""Constants of a roofline from durations: each group of constants is moved until its rows fit best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from policies.types import ModelShape, Work
from sim.compute.roofline import ModelRoofline, Roofline

SMALLEST_STEP = 1e-4

LAYER_CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "layer": ("gemm_bandwidth_share", "gemm_flops_share", "small_ops_s"),
    "mha": ("mha_fixed_s", "mha_bandwidth_share"),
    "gqa": ("gqa_fixed_s", "gqa_bandwidth_share"),
    "prefill": ("prefill_attention_s", "prefill_attention_flops_share"),
}
"""The constants that each kind of row decides."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured duration: a layer without attention, or what attention adds to one.

    Attributes:
        layer_us: what it is part of, if that was measured: errors are shares of this.
    """

    kind: str
    label: str
    shape: ModelShape
    work: Work
    measured_us: float
    layer_us: float | None = None


def relative_error(machine: Roofline, row: Row) -> float:
    """How much longer than measured it takes according to the roofline, as a share of it or of its layer."""
    without = replace(machine, mha_fixed_s=0, mha_sequence_s=0, gqa_fixed_s=0, gqa_sequence_s=0, prefill_attention_s=0)
    no_pairs = replace(row.work, decode_context_tokens=0, prefill_pairs=0)
    predicted_ns = ModelRoofline(without, row.shape).layer_ns(no_pairs)
    if row.kind != "layer":
        predicted_ns = ModelRoofline(machine, row.shape).layer_ns(row.work) - predicted_ns
    return (predicted_ns / 1000 - row.measured_us) / (row.layer_us or row.measured_us)


def fit(machine: Roofline, rows: Iterable[Row], constants: Mapping[str, tuple[str, ...]] = LAYER_CONSTANTS) -> Roofline:
    """Fit each group of constants to the rows that decide it; one without rows stays.

    Args:
        constants: names by kind of row. One that is 0 stays 0.
    """
    rows = list(rows)
    for kind, names in constants.items():
        own = [row for row in rows if row.kind == kind]
        if own:
            machine = _search(machine, names, own)
    return machine


def _search(machine: Roofline, names: tuple[str, ...], rows: Sequence[Row]) -> Roofline:
    """Lower the mean squared relative error by moving one constant at a time, in ever smaller steps."""

    def loss(candidate: Roofline) -> float:
        return fmean(relative_error(candidate, row) ** 2 for row in rows)

    lowest, step = loss(machine), 0.1
    while step > SMALLEST_STEP:
        factors = [(name, factor) for name in names for factor in (1 + step, 1 / (1 + step))]
        moves = [replace(machine, **{name: getattr(machine, name) * factor}) for name, factor in factors]
        best_loss, best = min(((loss(move), move) for move in moves), key=lambda pair: pair[0])
        if best_loss < lowest:
            lowest, machine = best_loss, best
        else:
            step /= 2
    return machine


def decode(n_seqs: int, context_tokens: int) -> Work:
    """A decode step of sequences whose contexts add up to ``context_tokens``."""
    return Work(
        n_prefill_tokens=0,
        n_prefill_seqs=0,
        prefill_pairs=0,
        n_decode_seqs=n_seqs,
        decode_context_tokens=context_tokens,
        n_sampled=n_seqs,
    )


def prefill(n_tokens: int, n_before: int = 0, n_seqs: int = 1) -> Work:
    """A prefill step of equal sequences, of so many new tokens each behind others that are in the cache."""
    return Work(
        n_prefill_tokens=n_seqs * n_tokens,
        n_prefill_seqs=n_seqs,
        prefill_pairs=n_seqs * n_tokens * (2 * n_before + n_tokens + 1) // 2,
        n_decode_seqs=0,
        decode_context_tokens=0,
        n_sampled=n_seqs,
    )
