"""What ``profile`` leaves of mixtures of experts: a table of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from executor.profiling.profile import ExpertProfile
from traces.measured.expert_tables import ExpertTimings, write_expert_table


def write_experts(folder: Path, measured: Sequence[ExpertProfile], about: Mapping[str, str]) -> list[Path]:
    """Write their tables into a folder that is there; return the files."""
    tables = [
        ExpertTimings(
            shape=each.shape,
            n_ranks=each.n_ranks,
            padding=each.padding,
            about=about,
            timings=tuple(each.timings),
        )
        for each in measured
    ]
    return [write_expert_table(folder, table) for table in tables]
