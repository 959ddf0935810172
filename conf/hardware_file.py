"""A hardware file out of a profile: the same keys as the others, each constant with how it was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression

from executor.profiling.machine import VmmTimes
from executor.profiling.profile import MachineProfile
from policies.types import NS_PER_S, HardwareProfile
from sim.compute.curve import Curve
from sim.compute.fit import LAYER_CONSTANTS, Row, decode, fit, prefill, relative_error
from sim.compute.roofline import ModelRoofline, Roofline
from sim.compute.table import attention_ns
from traces.measured.device_tables import DeviceTable, Part

CONSTANTS: Mapping[str, tuple[str, ...]] = {
    **LAYER_CONSTANTS,
    "mha": ("mha_fixed_s", "mha_sequence_s", "mha_bandwidth_share"),
    "gqa": ("gqa_fixed_s", "gqa_sequence_s", "gqa_bandwidth_share"),
}
"""What the rows of a profile decide: they tell a sequence from its context, unlike those of a probe."""

NS_PER_US = 1000

NAMES = {
    "layer": "layers without attention",
    "mha": "decode attention, as many KV heads as heads",
    "gqa": "decode attention, fewer KV heads",
    "prefill": "prefill attention",
}


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants, and for each kind of row how many there were and how far off the fit is: mean and most, as shares."""

    machine: Roofline
    errors: Mapping[str, tuple[int, float, float]]


def start(machine: MachineProfile) -> Roofline:
    """Where the search begins: what a good GPU does, of the rates that were measured."""
    return Roofline(
        hbm_bytes_per_s=machine.copy_bytes_per_s,
        flops_per_s=machine.flops_per_s,
        gemm_s=4e-6,
        gemm_bandwidth_share=0.9,
        gemm_flops_share=0.8,
        mha_fixed_s=1e-5,
        mha_sequence_s=4e-7,
        mha_bandwidth_share=0.9,
        gqa_fixed_s=1e-5,
        gqa_sequence_s=4e-8,
        gqa_bandwidth_share=0.9,
        prefill_attention_s=3e-5,
        prefill_attention_flops_share=0.5,
        small_ops_s=2e-5,
        head_s=4e-5,
        host_s=1e-3,
        host_sequence_s=1e-5,
    )


def fitted(machine: Roofline, tables: Sequence[DeviceTable]) -> Fitted:
    """Fit a roofline to all tables together."""
    rows = [row for table in tables for row in _rows(table)]
    machine = fit(machine, rows, CONSTANTS)
    machine = replace(machine, head_s=_head_s(machine, tables), **_host(tables))
    errors = {kind: [abs(relative_error(machine, row)) for row in rows if row.kind == kind] for kind in CONSTANTS}
    return Fitted(machine, {kind: (len(its), fmean(its), max(its)) for kind, its in errors.items() if its})


def _rows(table: DeviceTable) -> Iterator[Row]:
    """Layers without attention, and what attention adds to them: as a difference of two long times it may be far off
    where it is short, so its errors are shares of the layer.
    """
    shape = table.shape
    others = Curve((timing.n_tokens, timing.ns) for timing in table.of(Part.OTHERS))
    for timing in table.of(Part.OTHERS):
        label = f"{shape.name} {timing.n_tokens}"
        yield Row("layer", label, shape, decode(timing.n_tokens, 0), timing.ns / NS_PER_US)
    kind = "mha" if shape.n_kv_heads == shape.n_heads else "gqa"
    for timing in table.of(Part.DECODE_LAYER):
        added_ns = timing.ns - others(timing.n_seqs)
        label = f"{shape.name} {timing.n_seqs} x {timing.context_tokens / timing.n_seqs:g}"
        if added_ns > 0:
            work = decode(timing.n_seqs, timing.context_tokens)
            yield Row(kind, label, shape, work, added_ns / NS_PER_US, timing.ns / NS_PER_US)
    for timing in table.of(Part.PREFILL_LAYER):
        added_ns = attention_ns(table, others, timing)
        label = f"{shape.name} {timing.n_tokens} behind {timing.context_tokens}"
        if added_ns > 0 and timing.n_seqs == 1:
            work = prefill(timing.n_tokens, timing.context_tokens)
            yield Row("prefill", label, shape, work, added_ns / NS_PER_US, timing.ns / NS_PER_US)


def _head_s(machine: Roofline, tables: Sequence[DeviceTable]) -> float:
    """What the head takes beyond the logits, on average."""
    bare = replace(machine, head_s=0.0)
    beyond_ns = [
        timing.ns - ModelRoofline(bare, table.shape).head_ns(decode(timing.n_seqs, 0))
        for table in tables
        for timing in table.of(Part.HEAD)
        if timing.n_seqs
    ]
    return max(0.0, fmean(beyond_ns) / NS_PER_S)


def _host(tables: Sequence[DeviceTable]) -> dict[str, float]:
    """Host time of decode steps, fixed and for each sequence."""
    timings = [timing for table in tables for timing in table.of(Part.DECODE_HOST)]
    slope, intercept = linear_regression([each.n_seqs for each in timings], [each.ns for each in timings])
    return {"host_s": max(0.0, intercept) / NS_PER_S, "host_sequence_s": max(0.0, slope) / NS_PER_S}


def hardware_yaml(
    name: str, hardware: HardwareProfile, machine: MachineProfile, tables: Sequence[DeviceTable]
) -> tuple[str, Roofline]:
    """Write a hardware file.

    Returns:
        Its text, and the roofline in it.
    """
    found, about = fitted(start(machine), tables), tables[0].about
    of, link, errors = found.machine, machine.link, found.errors
    decode, prefill = machine.decode_beside, machine.prefill_beside
    when = f"measured {about['measured']}"
    where = "pinned host memory" if machine.tier == "host" else "another GPU's HBM"
    layers = f"a layer of {link.copied_bytes} bytes at a time, {where}, {when}"
    host = "linear in the sequences of a decode step, the executor's own loop"
    values: list[tuple[str, object, str]] = [
        ("hbm_bytes", hardware.hbm_bytes, "as the driver reports it"),
        ("hbm_bytes_per_s", machine.copy_bytes_per_s, f"copy within HBM, read and written, {when}; shares are of this"),
        ("flops_per_s", machine.flops_per_s, f"one large product of matrices, {when}; shares are of this"),
        ("page_bytes", hardware.page_bytes, "granularity of the driver"),
        ("link", None, ""),
        ("  h2d_bytes_per_s", link.h2d_bytes_per_s, layers),
        ("  d2h_bytes_per_s", link.d2h_bytes_per_s, layers),
        ("  joint_bytes_per_s", link.joint_bytes_per_s, f"both directions at once, {layers}"),
        ("  compute_slowdown", round(decode.compute, 4), f"a decode step beside fetches, {when}"),
        ("  copy_slowdown", round(decode.copies, 4), f"fetches beside a decode step, {when}"),
        ("  prefill_compute_slowdown", round(prefill.compute, 4), f"a prompt beside fetches, {when}"),
        ("  prefill_copy_slowdown", round(prefill.copies, 4), f"fetches beside a prompt, {when}"),
        ("roofline", None, ""),
        ("  gemm_s", of.gemm_s, "taken: a layer's time does not tell it from the small kernels"),
        *_constants(of, "layer", errors),
        *_constants(of, "mha", errors),
        *_constants(of, "gqa", errors),
        *_constants(of, "prefill", errors),
        ("  head_s", of.head_s, f"what the head takes beyond the logits, on average, {when}"),
        ("  host_s", of.host_s, host),
        ("  host_sequence_s", of.host_sequence_s, host),
        ("  host_scale", 1.0, "sweep 0.5-2"),
        ("vmm", None, ""),
        ("  range_ns", machine.vmm_layer.remap_ns, _calls(machine.vmm_layer)),
        ("  page_ns", machine.vmm_page.remap_ns, _calls(machine.vmm_page)),
    ]
    lines = [
        f"# {about['device']}, measured {about['measured']} at commit {about['commit']}.",
        f"# Renew: {about['command']}",
        f"# Tables of the same measurement: compute=table. Models: {', '.join(table.shape.name for table in tables)}.",
        f"name: {name}",
        *(f"{key}:" if value is None else f"{key}: {_number(value)}  # {source}" for key, value, source in values),
    ]
    return "\n".join(lines) + "\n", of


def _constants(
    machine: Roofline, kind: str, errors: Mapping[str, tuple[int, float, float]]
) -> Iterator[tuple[str, object, str]]:
    if kind in errors:
        n, mean, most = errors[kind]
        of = "" if kind == "layer" else " of the layer"
        source = f"fit to {n} rows ({NAMES[kind]}): {mean:.1%}{of} off on average, {most:.1%} at most"
    else:
        source = f"not measured: no model with {NAMES[kind]}"
    for name in CONSTANTS[kind]:
        yield f"  {name}", getattr(machine, name), source


def _calls(times: VmmTimes) -> str:
    return (
        f"map {times.map_ns / NS_PER_US:.1f} + set-access {times.allow_access_ns / NS_PER_US:.1f} + unmap "
        f"{times.unmap_ns / NS_PER_US:.1f} us for one handle of {times.n_bytes} bytes"
    )


def _number(value: object) -> str:
    """A float to four digits, with a point even where it has an exponent: YAML 1.1 reads ``1e-06`` as a word."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3e}" if 0 < value < 1e-3 else str(float(f"{value:.4g}"))
