"""What a run's tables tell of its steps, in the order in which they ran: enough to take its decisions again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traces.results.folder import RunTables

_OF_A_STEP = ("model", "start_ns", "end_ns", "n_prefill_tokens", "n_decode_seqs", "stall_ns")


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of one model; fields as in the table ``steps``; ``rest_ns`` is ``None`` in runs that older code made."""

    lane: int
    start_ns: int
    end_ns: int
    n_prefill_tokens: int
    n_decode_seqs: int
    stall_ns: int
    rest_ns: int | None = None

    @property
    def lasted_ns(self) -> int:
        """From the end of the step before, or from when there was something to do."""
        return self.end_ns - self.start_ns

    def __str__(self) -> str:
        return f"model {self.lane} with {self.n_prefill_tokens} prompt tokens and {self.n_decode_seqs} decodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run step by step.

    Attributes:
        steps: in order of time.
        landed: by moment, (model, layers whose loads were found complete then).
    """

    steps: tuple[RecordedStep, ...]
    landed: Mapping[int, tuple[tuple[int, int], ...]]


def record_of(run: RunTables, layer_bytes: Sequence[int]) -> Record:
    """Read a run's steps and landings.

    Args:
        layer_bytes: weights of a layer of each model.

    Raises:
        ValueError: the run has not kept its steps, or nothing of its memory.
    """
    if missing := sorted({"steps", "memory"} - set(run.kept)):
        raise ValueError(f"{run.folder} has kept no {' and no '.join(missing)}; run it with keep=[steps,memory]")
    names = (*_OF_A_STEP, "rest_ns") if run.has("steps", "rest_ns") else _OF_A_STEP
    columns = run.columns("steps", names)
    order = np.lexsort((columns["end_ns"], columns["start_ns"]))
    rows = zip(*(columns[name][order].tolist() for name in names), strict=True)
    return Record(steps=tuple(RecordedStep(*row) for row in rows), landed=_landed(run, layer_bytes))


def _landed(run: RunTables, layer_bytes: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """A model's loads that are on their way become fewer when one lands."""
    memory = run.columns("memory", ("at_ns", "model", "loading_bytes"))
    landed: dict[int, tuple[tuple[int, int], ...]] = {}
    loading = [0] * len(layer_bytes)
    rows: list[tuple[int, int, int]] = list(zip(*(column.tolist() for column in memory.values()), strict=True))
    for at_ns, model, n_bytes in rows:
        n_layers = round((loading[model] - n_bytes) / layer_bytes[model])
        if n_layers > 0:
            landed[at_ns] = (*landed.get(at_ns, ()), (model, n_layers))
        loading[model] = n_bytes
    return landed
