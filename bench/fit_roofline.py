"""Fit the roofline's constants of one machine to its probe, and print how far off they are.

Run: python -m bench.fit_roofline PROBE.json conf/hardware/h200_pcie.yaml
(``tests/data/h200_layers.json`` is such a probe). Fitted are the shares of bandwidth and
of tensor cores, the small kernels, and the attention of decode and of prefill. The launch
of a GEMM stays as the hardware file has it, for a layer's time does not tell it from the
small kernels; so does what decode attention takes for each sequence, for the probe does
not tell it from reading the sequence's KV cache.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

from policies.types import ModelShape, Work
from sim.compute.roofline import ModelRoofline, Roofline

MODELS = Path(__file__).parents[1] / "conf" / "model"
PROBED_CONSTANTS = {
    "layer": ("gemm_bandwidth_share", "gemm_flops_share", "small_ops_s"),
    "mha": ("mha_fixed_s", "mha_bandwidth_share"),
    "gqa": ("gqa_fixed_s", "gqa_bandwidth_share"),
    "prefill": ("prefill_attention_s", "prefill_attention_flops_share"),
}
"""The constants that each kind of row decides."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured duration: a layer without attention, or the attention of one layer alone."""

    kind: str
    label: str
    shape: ModelShape
    work: Work
    measured_us: float


def read_rows(probe_path: Path) -> list[Row]:
    """Read the times of layers, of decode attention and of causal prefill attention from a probe."""
    probe: dict[str, dict[str, Any]] = json.loads(probe_path.read_text())
    rows: list[Row] = []
    for label, us in probe["decode_layers"].items():
        if found := re.fullmatch(r"(.+)_B(\d+)_layer_us", label):
            shape = read_shape(re.sub(r"\W", "_", found[1]))
            rows.append(Row("layer", label, shape, decode(int(found[2]), context_tokens=0), us))
    for label, row in probe["attention"].items():
        if found := re.fullmatch(r"sdpa_B(\d+)_H(\d+)_KV(\d+)_S(\d+)", label):
            n_seqs, n_heads, n_kv_heads, context = map(int, found.groups())
            kind, shape = ("mha", "opt_13b") if n_heads == n_kv_heads else ("gqa", "llama_3_8b")
            rows.append(Row(kind, label, read_shape(shape), decode(n_seqs, n_seqs * context), row["us"]))
    for label, us in probe["prefill"].items():
        if found := re.fullmatch(r"causal_T(\d+)_us", label):
            rows.append(Row("prefill", label, read_shape("opt_13b"), prefill(int(found[1])), us))
    return rows


def read_shape(name: str) -> ModelShape:
    """Read ``conf/model/<name>.yaml``."""
    fields: Any = OmegaConf.to_container(OmegaConf.load(MODELS / f"{name}.yaml"))
    return ModelShape(**fields)


def read_machine(path: Path) -> Roofline:
    """Read the roofline of a hardware file."""
    hardware: Any = OmegaConf.to_container(OmegaConf.load(path))
    rates = {rate: hardware[rate] for rate in ("hbm_bytes_per_s", "flops_per_s")}
    return Roofline(**rates, **hardware["roofline"])


def relative_error(machine: Roofline, row: Row) -> float:
    """How much longer than measured it takes according to the roofline, as a share."""
    without = replace(machine, mha_fixed_s=0, mha_sequence_s=0, gqa_fixed_s=0, gqa_sequence_s=0, prefill_attention_s=0)
    no_pairs = replace(row.work, decode_context_tokens=0, prefill_pairs=0)
    predicted_ns = ModelRoofline(without, row.shape).layer_ns(no_pairs)
    if row.kind != "layer":
        predicted_ns = ModelRoofline(machine, row.shape).layer_ns(row.work) - predicted_ns
    return predicted_ns / 1000 / row.measured_us - 1


def fit(machine: Roofline, rows: Iterable[Row]) -> Roofline:
    """Fit each group of constants to the rows that decide it."""
    rows = list(rows)
    for kind, names in PROBED_CONSTANTS.items():
        machine = _search(machine, names, [row for row in rows if row.kind == kind])
    return machine


def _search(machine: Roofline, names: tuple[str, ...], rows: list[Row]) -> Roofline:
    """Lower the mean squared relative error by moving one constant at a time, in ever smaller steps."""

    def loss(candidate: Roofline) -> float:
        return fmean(relative_error(candidate, row) ** 2 for row in rows)

    lowest, step = loss(machine), 0.1
    while step > 1e-4:
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


def prefill(n_tokens: int) -> Work:
    """A prefill step of one whole prompt."""
    return Work(
        n_prefill_tokens=n_tokens,
        n_prefill_seqs=1,
        prefill_pairs=n_tokens * (n_tokens + 1) // 2,
        n_decode_seqs=0,
        decode_context_tokens=0,
        n_sampled=1,
    )


def main() -> None:
    """Fit, then print the constants as they stand in a hardware file and every row's error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", type=Path)
    parser.add_argument("hardware", type=Path)
    arguments = parser.parse_args()
    rows = read_rows(arguments.probe)
    machine = fit(read_machine(arguments.hardware), rows)
    for kind, names in PROBED_CONSTANTS.items():
        of_kind = [(row, relative_error(machine, row)) for row in rows if row.kind == kind]
        sizes = [abs(error) for _, error in of_kind]
        print(f"# {kind}: {len(sizes)} rows, error {fmean(sizes):.1%} on average, {max(sizes):.1%} at most")
        for name in names:
            print(f"{name}: {getattr(machine, name):.3g}")
        for row, error in of_kind:
            print(f"#   {row.label:28} {row.measured_us:8.1f} us  {error:+6.1%}")


if __name__ == "__main__":
    main()
