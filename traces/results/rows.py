"""The tables of a run: one dataclass a table, one field a column, its unit in its name.

Both worlds write the same columns. ``Int32`` is for counts and indices that fit,
``int`` for nanoseconds and bytes; ``Label`` is a member of an enum, stored as its name in
lower case; ``Json`` is a document. No row is ever made: they go as columns, so that the
classes have their fields and no methods, which take time to make.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

Int32 = Annotated[int, "int32"]
Label = Annotated[Enum, "label"]
Json = Annotated[str, "json"]

Kind = Literal["int32", "int64", "bool", "label", "json"]
TableName = Literal["requests", "steps", "decisions", "memory", "gaps"]


@dataclass(init=False, repr=False, eq=False)
class RequestRow:
    """One request, when it has finished or was dropped, or at the end of a run that it outlived.

    Attributes:
        outcome: finished, dropped, or where it was left: waiting, running, swapped.
        n_output_tokens: output tokens that it produced.
        max_output_tokens: as declared.
        n_recomputed_tokens: tokens computed again after a preemption.
        scheduled_ns: when a step that computes a part of it was first composed.
        n_hit_tokens: prompt tokens found in the prefix cache, over all (re)starts; ``n_first_hit_tokens``: when it
            was first scheduled.
        mean_gap_ns, max_gap_ns: over its gaps between two tokens, the mean rounded down;
            ``None`` with fewer than two tokens.
    """

    request_id: Int32
    model: Int32
    arrival_ns: int
    n_prompt_tokens: Int32
    n_output_tokens: Int32
    max_output_tokens: Int32
    first_token_ns: int | None
    finish_ns: int | None
    outcome: Label
    n_preemptions: Int32
    n_recomputed_tokens: int
    n_hit_tokens: int
    scheduled_ns: int | None
    n_first_hit_tokens: Int32
    mean_gap_ns: int | None
    max_gap_ns: int | None


@dataclass(init=False, repr=False, eq=False)
class StepRow:
    """One step of one model, also where several were submitted as one.

    ``stall_ns`` is what it waited for memory that was not in place: fetched layers, and
    before the first step of a submission swapped KV and changed mappings. ``rest_ns`` is what of it was outside the
    layers: host, head, sampling.
    """

    model: Int32
    start_ns: int
    end_ns: int
    n_prefill_tokens: Int32
    n_decode_seqs: Int32
    stall_ns: int
    rest_ns: int


@dataclass(init=False, repr=False, eq=False)
class DecisionRow:
    """One question to the policy and its answer.

    Attributes:
        step: steps done so far by all models.
        asker: the model that is short, or that runs.
        changed: the answer took effect: it differs from what was in force, and fitted.
        refused: it differs, but did not fit; what was in force stays.
        evict_cost_ns, offload_cost_ns, both_cost_ns, preempt_cost_ns: the price of each option before an eviction
            (see ``policies/costs.py``); ``None``: it could not be done, or the question was another.
        view, targets: what the policy saw and what it wants of every model; only if ``changed``.
    """

    at_ns: int
    step: Int32
    ask: Label
    asker: Int32
    reason: Label
    n_short_blocks: Int32
    changed: bool
    refused: bool
    evict_cost_ns: int | None
    offload_cost_ns: int | None
    both_cost_ns: int | None
    preempt_cost_ns: int | None
    view: Json | None
    targets: Json | None


@dataclass(init=False, repr=False, eq=False)
class MemoryRow:
    """Who holds HBM for one model from ``at_ns`` until its next row (see ``HbmUse``)."""

    at_ns: int
    model: Int32
    resident_bytes: int
    slot_bytes: int
    loading_bytes: int
    lent_bytes: int
    n_base_blocks: Int32
    n_base_used: Int32
    n_lent_blocks: Int32
    n_lent_used: Int32


@dataclass(init=False, repr=False, eq=False)
class GapRow:
    """Exact histogram: ``n`` times two tokens of one request were ``gap_ns`` apart, for this cause."""

    model: Int32
    cause: Label
    gap_ns: int
    n: int


ROW_TYPES: dict[TableName, type] = {
    "requests": RequestRow,
    "steps": StepRow,
    "decisions": DecisionRow,
    "memory": MemoryRow,
    "gaps": GapRow,
}


def label(member: Enum) -> str:
    """Name a member of an enum as the tables do."""
    return member.name.lower()


@dataclass(frozen=True, slots=True)
class Column:
    """One column as it is stored."""

    name: str
    kind: Kind
    nullable: bool


def columns_of(row_type: type) -> tuple[Column, ...]:
    """Read the columns of a table from its row dataclass, in order."""
    hints = get_type_hints(row_type, include_extras=True)
    return tuple(_column(field.name, hints[field.name]) for field in fields(row_type))


def _column(name: str, hint: object) -> Column:
    options = [hint] if get_origin(hint) is Annotated or not get_args(hint) else [*get_args(hint)]
    nullable = type(None) in options
    (stored,) = (option for option in options if option is not type(None))
    kinds: dict[object, Kind] = {int: "int64", bool: "bool", Int32: "int32", Label: "label", Json: "json"}
    return Column(name, kinds[stored], nullable)
