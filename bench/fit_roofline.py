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
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

from policies.types import ModelShape
from sim.compute.fit import LAYER_CONSTANTS, Row, decode, fit, prefill, relative_error
from sim.compute.roofline import Roofline

MODELS = Path(__file__).parents[1] / "conf" / "model"


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


def main() -> None:
    """Fit, then print the constants as they stand in a hardware file and every row's error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe", type=Path)
    parser.add_argument("hardware", type=Path)
    arguments = parser.parse_args()
    rows = read_rows(arguments.probe)
    machine = fit(read_machine(arguments.hardware), rows)
    for kind, names in LAYER_CONSTANTS.items():
        of_kind = [(row, relative_error(machine, row)) for row in rows if row.kind == kind]
        sizes = [abs(error) for _, error in of_kind]
        print(f"# {kind}: {len(sizes)} rows, error {fmean(sizes):.1%} on average, {max(sizes):.1%} at most")
        for name in names:
            print(f"{name}: {getattr(machine, name):.3g}")
        for row, error in of_kind:
            print(f"#   {row.label:28} {row.measured_us:8.1f} us  {error:+6.1%}")


if __name__ == "__main__":
    main()
