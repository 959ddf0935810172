"""What a profile says of itself: sums of parts against whole steps, and rates against the device's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policies.types import NS_PER_S
from sim.compute.fit import prefill
from sim.compute.table import Curve, TableModel
from traces.device_tables import DeviceTable, Part, Timing

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
    """Whole prefill steps against what the simulator makes of the parts."""
    model, n_layers = TableModel(table), table.shape.n_layers
    for timing in table.of(Part.PREFILL_STEP):
        work = prefill(timing.n_tokens // timing.n_seqs, n_seqs=timing.n_seqs)
        yield Check(
            model=table.shape.name,
            what=f"prefill {timing.n_seqs} x {timing.n_tokens // timing.n_seqs}, by the table",
            unit="ms",
            measured=timing.ns / NS_PER_MS,
            expected=(n_layers * model.layer_ns(work) + model.head_ns(work)) / NS_PER_MS,
        )


def _size(timing: Timing) -> str:
    return f"{timing.n_seqs} x {timing.context_tokens / timing.n_seqs:g}"
