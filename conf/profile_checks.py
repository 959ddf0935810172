"""What a profile says of itself: sums of parts against whole steps, and rates against the device's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from policies.types import NS_PER_S, Work
from sim.compute.curve import Curve
from sim.compute.fit import prefill
from sim.compute.table import TableModel
from traces.measured.device_tables import DeviceTable, Part, Timing

NS_PER_MS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something measured beside what it should be.

    Attributes:
        measured, expected: in ``unit``.
    """

    model: str
    what: str
    unit: str
    measured: float
    expected: float

    @property
    def line(self) -> str:
        """For a person."""
        ratio = self.measured / self.expected if self.expected else float("nan")
        beside = f"{self.measured:10.3f} {self.unit:5} against {self.expected:10.3f}  {ratio:6.3f}"
        return f"{self.model:14} {self.what:44} {beside}"


def checks(table: DeviceTable, copy_bytes_per_s: int) -> Iterator[Check]:
    """Work out the checks of one model.

    Args:
        copy_bytes_per_s: what a copy within HBM reaches, read and written together.
    """
    yield from _decode_bounds(table, copy_bytes_per_s)
    yield from _attention(table, copy_bytes_per_s)
    yield from _decode_sums(table)
    yield from _prefill_sums(table)
    yield from _prefill_launch(table)


def _decode_bounds(table: DeviceTable, copy_bytes_per_s: int) -> Iterator[Check]:
    """Whole decode steps against the time to read weights and K and V once."""
    shape = table.shape
    for timing in table.of(Part.EVEN_DECODE_STEP):
        n_bytes = shape.total_bytes + timing.context_tokens * shape.kv_bytes_per_token
        yield Check(
            model=shape.name,
            what=f"decode {_size(timing)}, bytes / copy bandwidth",
            unit="ms",
            measured=timing.ns / NS_PER_MS,
            expected=n_bytes / copy_bytes_per_s * NS_PER_S / NS_PER_MS,
        )


def _attention(table: DeviceTable, copy_bytes_per_s: int) -> Iterator[Check]:
    """The fastest decode attention against the copy bandwidth."""
    kv_bytes = table.shape.kv_bytes_per_token // table.shape.n_layers
    rates = [
        (timing.context_tokens * kv_bytes / max(1, timing.ns), timing) for timing in table.of(Part.DECODE_ATTENTION)
    ]
    if rates:
        rate, timing = max(rates, key=lambda pair: pair[0])
        yield Check(
            model=table.shape.name,
            what=f"decode attention {_size(timing)}, copy bandwidth",
            unit="GB/s",
            measured=rate,
            expected=copy_bytes_per_s / NS_PER_S,
        )


def _decode_sums(table: DeviceTable) -> Iterator[Check]:
    """A layer in a step against its parts alone, where they are furthest apart."""
    alone = {(each.n_seqs, each.context_tokens): each.ns for each in table.of(Part.DECODE_ATTENTION)}
    others = Curve((each.n_tokens, each.ns) for each in table.of(Part.OTHERS))
    found: list[tuple[float, Timing, int]] = []
    for timing in table.of(Part.DECODE_LAYER):
        parts_ns = others(timing.n_seqs) + alone[timing.n_seqs, timing.context_tokens]
        found.append((abs(timing.ns / parts_ns - 1), timing, parts_ns))
    if found:
        _, timing, parts_ns = max(found, key=lambda each: each[0])
        yield Check(
            model=table.shape.name,
            what=f"decode layer {_size(timing)}, parts alone (worst)",
            unit="ms",
            measured=timing.ns / NS_PER_MS,
            expected=parts_ns / NS_PER_MS,
        )


def _prefill_sums(table: DeviceTable) -> Iterator[Check]:
    """Whole steps with prompts that are no point of the table against what the simulator makes of it."""
    model, n_layers = TableModel(table), table.shape.n_layers
    points = {(each.n_seqs, each.n_tokens, each.context_tokens) for each in table.of(Part.PREFILL_LAYER)}
    steps = [
        (f"prefill {_prompts(each)}", each, prefill(each.n_tokens // each.n_seqs, n_seqs=each.n_seqs))
        for each in table.of(Part.PREFILL_STEP)
        if (each.n_seqs, each.n_tokens, each.context_tokens) not in points
    ]
    for each in table.of(Part.MIXED_STEP):
        work = _mixed(each)
        steps.append((f"mixed {work.n_prefill_tokens} beside {work.n_decode_seqs}", each, work))
    for what, timing, work in steps:
        yield Check(
            model=table.shape.name,
            what=f"{what}, by the table",
            unit="ms",
            measured=timing.ns / NS_PER_MS,
            expected=(n_layers * model.layer_ns(work) + model.head_ns(work)) / NS_PER_MS,
        )


def _prefill_launch(table: DeviceTable) -> Iterator[Check]:
    """The host's time for a layer that graphs hold against the shortest such layer of prefills."""
    launches, layers = table.of(Part.GRAPHED_LAUNCH), table.of(Part.PREFILL_LAYER)
    if launches:
        yield Check(
            model=table.shape.name,
            what="prefill graphs, host / shortest layer",
            unit="ms",
            measured=max(each.ns for each in launches) / NS_PER_MS,
            expected=min(each.ns for each in layers) / NS_PER_MS,
        )


def _mixed(timing: Timing) -> Work:
    n_decodes = timing.n_seqs - 1
    return replace(
        prefill(timing.n_tokens - n_decodes),
        n_decode_seqs=n_decodes,
        decode_context_tokens=timing.context_tokens,
        n_sampled=timing.n_seqs,
    )


def _prompts(timing: Timing) -> str:
    return f"{timing.n_seqs} x {timing.n_tokens // timing.n_seqs}"


def _size(timing: Timing) -> str:
    return f"{timing.n_seqs} x {timing.context_tokens / timing.n_seqs:g}"
