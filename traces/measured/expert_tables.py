"""What one rank of a mixture of experts was measured to take on one device: a CSV file as those of dense models.

Its first line describes model and ranks, its rows have one column more, the experts that were used::

    # {"schema_version": 2, "experts": {...}, "n_ranks": 1, "padding": {...}, "about": {...}}
    part,n_seqs,n_tokens,context_tokens,ns,spread_ns,n_samples,n_experts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from policies.moe import DeltaNet, MoeShape
from traces.measured.device_tables import (
    EXPERT_COLUMNS,
    SCHEMA_VERSION,
    Timings,
    differences,
    read_padding,
    read_timings,
    table_path,
    write_timings,
)

NOT_COMPUTED_WITH = frozenset({"name", "n_layers", "total_params", "max_context_tokens"})
"""Fields of a shape that change no duration of a layer, the head or the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimings(Timings):
    """All durations of one mixture of experts on one device.

    Attributes:
        n_ranks: it is divided among so many, of which one was measured, without the sums over all.
    """

    shape: MoeShape
    n_ranks: int


def expert_table_path(folder: Path, model: str, n_ranks: int) -> Path:
    """Name the file of a model: ``Qwen3-30B-A3B`` -> ``qwen3_30b_a3b.csv``, of two ranks ``qwen3_30b_a3b_tp2.csv``."""
    path = table_path(folder, model)
    return path if n_ranks == 1 else path.with_stem(f"{path.stem}_tp{n_ranks}")


def write_expert_table(folder: Path, table: ExpertTimings) -> Path:
    """Write the table of a model into a folder that is there; return its file."""
    path = expert_table_path(folder, table.shape.name, table.n_ranks)
    header = {
        "schema_version": SCHEMA_VERSION,
        "experts": asdict(table.shape),
        "n_ranks": table.n_ranks,
        "padding": asdict(table.padding),
        "about": dict(table.about),
    }
    write_timings(path, header, EXPERT_COLUMNS, table.timings)
    return path


def read_expert_table(folder: Path, shape: MoeShape, n_ranks: int) -> ExpertTimings:
    """Read the table of a model.

    Raises:
        ValueError: the model was not measured there, or with other sizes, or the file is faulty.
    """
    path = expert_table_path(folder, shape.name, n_ranks)
    named = table_path(folder, shape.name).stem
    header, timings = read_timings(path, EXPERT_COLUMNS, named if n_ranks == 1 else f"{named} --ranks {n_ranks}")
    measured = described(header["experts"])
    if differ := differences(measured, shape, NOT_COMPUTED_WITH):
        raise ValueError(f"{path} is of another {shape.name}: {differ}; measure it again")
    if header["n_ranks"] != n_ranks:
        raise ValueError(f"{path} is of {header['n_ranks']} ranks, not of {n_ranks}; measure it again")
    return ExpertTimings(
        shape=measured,
        n_ranks=n_ranks,
        padding=read_padding(header["padding"]),
        about=header["about"],
        timings=timings,
    )


def described(written: Mapping[str, Any]) -> MoeShape:
    """Take a shape out of a header, or out of a file that describes a model."""
    numbers, delta = dict(written), written.get("delta_net")
    numbers["delta_net"] = None if delta is None else DeltaNet(**delta)
    return MoeShape(**numbers)
