"""What one model was measured to take on one device: a CSV file that the executor writes and the simulator reads.

The first line is a comment with the provenance as JSON; then there is one row for each duration::

    # {"schema_version": 2, "model": {...}, "padding": {...}, "about": {"device": ..., "measured": ..., "commit": ...}}
    part,n_seqs,n_tokens,context_tokens,ns,spread_ns,n_samples
"""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from policies.moe import MoeShape
from policies.types import ModelShape

SCHEMA_VERSION = 2
"""Raised when a reader of the old tables would misread the new."""

NOT_COMPUTED_WITH = frozenset({"name", "n_layers", "layer_bytes", "total_bytes", "max_context_tokens"})
"""Fields of a shape that change no duration of a layer, the head or the host."""


class Part(Enum):
    """What took the time. The simulator reads the first eight; the others are there to check them.

    Of a mixture of experts it reads ``EXPERTS`` as well, and attention alone in place of ``PREFILL_LAYER``.
    """

    DECODE_LAYER = "decode_layer"
    """A layer of a decode step: by sequences (as many as the step is padded to) and their contexts added up."""
    OTHERS = "others"
    """A layer without attention, and without its experts if it has such: by tokens, padding included."""
    PREFILL_LAYER = "prefill_layer"
    """A layer of a step of prefills, padded as it is run: by sequences of equal length, their new tokens added up, and
    tokens of each that were there before."""
    EXPERTS = "experts"
    """The experts of a layer, their grouped GEMMs one behind the other: by sequences and tokens, as many of both for
    decodes, one sequence for a prompt; and by the experts that they use."""
    LAUNCH = "launch"
    """Host time to launch a layer of prompts and decodes kernel by kernel: by sequences."""
    HEAD = "head"
    """Everything of a step outside the layers, on the device: by sampled rows; 0: nothing is sampled."""
    DECODE_HOST = "decode_host"
    """A decode step less its device time: by sequences."""
    PREFILL_HOST = "prefill_host"
    """A step with prompts that is launched kernel by kernel less its device time: by sequences."""
    GRAPHED_PREFILL_HOST = "graphed_prefill_host"
    """The same of one that graphs hold."""
    GRAPHED_LAUNCH = "graphed_launch"
    """Host time to ask for a step of prefills that graphs hold, inputs and head included, by its number of layers: by
    sequences. Where it is less than a ``PREFILL_LAYER``, launching does not matter."""
    DECODE_ATTENTION = "decode_attention"
    """Attention of one layer of a decode step alone, as ``DECODE_LAYER``."""
    PREFILL_ATTENTION = "prefill_attention"
    """Attention of one layer of a prefill alone, as ``PREFILL_LAYER``."""
    DECODE_STEP = "decode_step"
    """All layers and the head of a decode step, as ``DECODE_LAYER``; some of fewer sequences than it is padded to."""
    EVEN_DECODE_STEP = "even_decode_step"
    """The same where all contexts are equally long."""
    PREFILL_STEP = "prefill_step"
    """All layers and the head of a step of prefills, as ``PREFILL_LAYER``."""
    MIXED_STEP = "mixed_step"
    """The same of one prompt beside decodes, one sequence fewer: by sequences, new tokens of all, and contexts of the
    decodes added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """To what sizes steps are padded that run as graphs; where there are none, steps run as they are.

    Attributes:
        decode_seqs: sequences of decode steps, increasing.
        prefill_tokens: tokens of steps of prefills alone, increasing; what exceeds them is launched kernel by kernel.
        tokens_per_seq: so many of these tokens there are at least for each sequence.
    """

    decode_seqs: tuple[int, ...] = ()
    prefill_tokens: tuple[int, ...] = ()
    tokens_per_seq: int = 1

    def prefill_rows(self, n_tokens: int, n_seqs: int) -> int | None:
        """Tokens that a step of prefills is padded to; ``None`` if no graph holds it."""
        at = bisect_left(self.prefill_tokens, max(n_tokens, self.tokens_per_seq * n_seqs))
        return self.prefill_tokens[at] if at < len(self.prefill_tokens) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One measured duration.

    Attributes:
        n_seqs: sequences in the step, padding included.
        n_tokens: new tokens of all of them.
        context_tokens: decode: contexts added up, the new tokens included; prefill: tokens of each sequence
            whose K and V were there before.
        ns: the median; of host times the mean, for some steps follow another at once and others are composed anew.
        spread_ns: from the 10th to the 90th percentile.
        n_samples: repetitions that these are of.
        n_experts: different experts of a layer that the tokens were routed to, mean of all layers; 0: not counted.
    """

    part: Part
    n_seqs: int
    n_tokens: int
    context_tokens: int
    ns: int
    spread_ns: int
    n_samples: int
    n_experts: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "part" and value < 0:
                raise ValueError(f"{self.part.value}: {field.name}={value} must not be negative")


COLUMNS = tuple(field.name for field in fields(Timing) if field.name != "n_experts")
EXPERT_COLUMNS = (*COLUMNS, "n_experts")
"""Of a mixture of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """All durations of one model on one device.

    Attributes:
        about: where they come from: device, driver, date, commit, versions, command.
    """

    padding: Padding
    about: Mapping[str, str]
    timings: Sequence[Timing]

    def of(self, part: Part) -> list[Timing]:
        """Pick the durations of one part."""
        return [timing for timing in self.timings if timing.part is part]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable(Timings):
    """Those of a dense model."""

    shape: ModelShape


def table_path(folder: Path, model: str) -> Path:
    """Name the file of a model: ``OPT-13b`` -> ``opt_13b.csv``."""
    return folder / f"{re.sub(r'[^a-z0-9]+', '_', model.lower())}.csv"


def write_table(folder: Path, table: DeviceTable) -> Path:
    """Write the table of a model into a folder that is there; return its file."""
    path = table_path(folder, table.shape.name)
    header = {
        "schema_version": SCHEMA_VERSION,
        "model": asdict(table.shape),
        "padding": asdict(table.padding),
        "about": dict(table.about),
    }
    write_timings(path, header, COLUMNS, table.timings)
    return path


def write_timings(path: Path, header: Mapping[str, object], columns: Sequence[str], timings: Iterable[Timing]) -> None:
    """Write a header and a row for each duration."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {json.dumps(header)}\n")
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        for timing in timings:
            rows.writerow((timing.part.value, *(getattr(timing, name) for name in columns[1:])))


def read_table(folder: Path, shape: ModelShape) -> DeviceTable:
    """Read the table of a model.

    Raises:
        ValueError: the model was not measured there, or with other sizes, or the file is faulty.
    """
    path = table_path(folder, shape.name)
    header, timings = read_timings(path, COLUMNS, path.stem)
    measured = ModelShape(**header["model"])
    if differ := differences(measured, shape, NOT_COMPUTED_WITH):
        raise ValueError(f"{path} is of another {shape.name}: {differ}; measure it again")
    return DeviceTable(shape=measured, padding=read_padding(header["padding"]), about=header["about"], timings=timings)


def read_timings(path: Path, columns: Sequence[str], model: str) -> tuple[dict[str, Any], tuple[Timing, ...]]:
    """Read header and durations of a file.

    Args:
        model: what ``profile --model`` measures it with.

    Raises:
        ValueError: it is not there, or faulty.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header = _header(path, file.readline())
            return header, tuple(_timings(path, csv.DictReader(file, strict=True), columns))
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: {_mend(path, model)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}; measure it again") from error


def read_padding(written: Mapping[str, Any]) -> Padding:
    """Take a padding out of a header."""
    return Padding(
        decode_seqs=tuple(written["decode_seqs"]),
        prefill_tokens=tuple(written["prefill_tokens"]),
        tokens_per_seq=written["tokens_per_seq"],
    )


def _mend(path: Path, model: str) -> str:
    there = sorted(each.stem for each in path.parent.glob("*.csv"))
    measured = f"measured are {', '.join(there)}" if there else f"nothing was measured in {path.parent}"
    return f"{measured}; run python -m executor profile --model {model}, or set compute=roofline"


def _header(path: Path, line: str) -> dict[str, Any]:
    try:
        header = json.loads(line.removeprefix("# "))
    except json.JSONDecodeError:
        raise ValueError(f"{path}, line 1 is not the comment that says what was measured; measure it again") from None
    if header.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}: a table of schema version {header.get('schema_version')}, this code reads {SCHEMA_VERSION}; "
            "measure it again"
        )
    return header


def _timings(path: Path, lines: csv.DictReader[str], columns: Sequence[str]) -> Iterable[Timing]:
    if tuple(lines.fieldnames or ()) != tuple(columns):
        raise ValueError(f"{path}: the columns are {lines.fieldnames}, not {', '.join(columns)}; measure it again")
    for line in lines:
        try:
            numbers = {name: int(line[name]) for name in columns[1:]}
            yield Timing(part=Part(line["part"]), **numbers)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {lines.line_num + 1}: {error}; measure it again") from None


def differences(measured: ModelShape | MoeShape, wanted: ModelShape | MoeShape, but: frozenset[str]) -> str:
    """Name the sizes in which two models of one kind differ, but for some on which no duration depends."""
    names = [field.name for field in fields(measured) if field.name not in but]
    pairs = {name: (getattr(measured, name), getattr(wanted, name)) for name in names}
    return ", ".join(f"{name} {was} there, {now} here" for name, (was, now) in pairs.items() if was != now)
