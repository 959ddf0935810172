"""Which assumption decides how far MIRAGE's gains go: one changed at a time, for baseline and MIRAGE alike.

    python -m bench.assumptions c2 'lengths=sharegpt' 'rates=[1,2.5,5]' 'workload.duration_s=300'

Each row is the change of ``mirage`` against ``recompute`` under one changed assumption, averaged over the
rates and over three seeds: one run has too few requests for a P99.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from hydra import compose, initialize_config_module

from conf.build import build
from conf.carry_out import carry_out
from conf.parallel import Parallel, side_by_side
from conf.run import Run, run_info
from traces.claims import METRICS, Claim, Result, findings
from traces.results.metrics import Summary, read_summary

FREE = 10**18  # bytes/s: a layer in a nanosecond


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that the paper leaves open, another answer to it, and the overrides that give it."""

    text: str
    overrides: tuple[str, ...]


ASSUMPTIONS = (
    Assumption("as the experiment has it", ()),
    Assumption(
        "link: copies are free", (f"hardware.link.h2d_bytes_per_s={FREE}", f"hardware.link.joint_bytes_per_s={FREE}")
    ),
    Assumption("link: measured GH200, 377 GB/s", ("hardware=gh200_measured",)),
    Assumption("link: 25 GB/s", ("hardware.link.h2d_bytes_per_s=25_000_000_000",)),
    Assumption("quantum 20 ms", ("tenancy.quantum_s=0.02",)),
    Assumption("quantum 500 ms", ("tenancy.quantum_s=0.5",)),
    Assumption("quantum 2 s", ("tenancy.quantum_s=2",)),
    Assumption("host time: none", ("hardware.roofline.host_scale=0",)),
    Assumption("host time: twice", ("hardware.roofline.host_scale=2",)),
    Assumption("HBM: 100e9 bytes", ("hardware.hbm_bytes=100_000_000_000",)),
    Assumption("HBM: 98e9 bytes", ("hardware.hbm_bytes=98_000_000_000",)),
    Assumption("HBM: 96e9 bytes", ("hardware.hbm_bytes=96_000_000_000",)),
    Assumption("cap 10 %", ("policy.mirage.max_remapped_fraction=0.1",)),
    Assumption("cap 30 %", ("policy.mirage.max_remapped_fraction=0.3",)),
    Assumption("inactive models: only the cap of 50 %", ("policy.mirage.inactive_bound=cap",)),
    Assumption(
        "inactive models: no cap",
        ("policy.mirage.inactive_bound=cap", "policy.mirage.max_remapped_fraction=1"),
    ),
    Assumption("inactive models: as if active", ("policy.mirage.inactive_bound=no_stall",)),
    Assumption("lend only from inactive models", ("policy.mirage.lend_from=inactive",)),
    Assumption("lend only from the active model", ("policy.mirage.lend_from=active",)),
    Assumption("activation: migrate", ("policy.mirage.activation=migrate",)),
    Assumption("placement: nested", ("policy.mirage.placement=nested",)),
    Assumption("victim order: LRU", ("policy.mirage.victim_order=lru",)),
    Assumption("no reversion", ("policy.mirage.reversion=false",)),
    Assumption("KV shared among models", ("serving.share_idle_kv=true",)),
    Assumption("no async output", ("serving.async_output=false",)),
)
SEEDS = (0, 1, 2)
METRICS_SHOWN = ("mean_gap_p99", "gap_p99", "ttft_p99", "output_tokens_per_s")


def change_under(experiment: str, overrides: Sequence[str], assumption: Assumption) -> str:
    """Run baseline and MIRAGE under one assumption and tell the changes in a line."""
    import_module("conf.app")  # stores the schema, in this process

    with initialize_config_module(version_base="1.3", config_module="conf"):
        own = ["compare=[recompute,mirage]", f"+experiment={experiment}", *overrides, *assumption.overrides]
        try:
            runs = [run for seed in SEEDS for run in build(compose("config", overrides=[*own, f"seed={seed}"])).runs]
        except ValueError as refused:
            return f"{assumption.text:40} refused: {refused}"
    with TemporaryDirectory() as folder:
        results = [
            Result(info=run_info(run), summary=_summary(run, Path(folder) / str(index)))
            for index, run in enumerate(runs)
        ]
    return f"{assumption.text:40}" + "".join(f"{100 * _change(name, results):+9.1f} %" for name in METRICS_SHOWN)


def _summary(run: Run, folder: Path) -> Summary:
    return read_summary(carry_out(run, folder))


def _change(metric: str, results: Sequence[Result]) -> float:
    claim = Claim(
        id="", text="", source="", mix=results[0].info.mix, baseline="recompute", system="mirage", kind="increase",
        value_percent=0, metrics=(metric,),
    )  # fmt: skip
    return fmean(finding.mean for finding in findings(claim, results))


def main(arguments: Sequence[str]) -> int:
    """Print a row an assumption, as they finish."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    experiment, *overrides = arguments
    print(f"{experiment} {' '.join(overrides)}: mirage against recompute, mean over the points")
    print(f"{'':40}{'mean gap P99':>11}{'all gaps P99':>13}{'TTFT P99':>9}{'tokens/s':>11}")
    for line in side_by_side(partial(change_under, experiment, overrides), ASSUMPTIONS, Parallel()):
        print(line, flush=True)
    print("definitions: " + "; ".join(f"{name}: {METRICS[name].definition}" for name in METRICS_SHOWN))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
