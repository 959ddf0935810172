"""Compute times of a model put together from latencies of single operations, as a table like a measured one.

What operations do not tell comes from the machine's roofline: small kernels, sampling, the host. Attention of a piece
of a prompt takes its share, in pairs of query and key, of that of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.types import NS_PER_S, ModelShape
from sim.compute.curve import Curve
from sim.compute.roofline import Roofline, gemm_sizes, small_ns
from traces.measured.device_tables import DeviceTable, Padding, Part, Timing
from traces.measured.op_latencies import OpLatencies, Points

MOST_SEQS = 256
"""Sequences up to which the host's time is written down; it is linear."""

BEHIND_TOKENS = 4096
"""Tokens behind which pieces of prompts are written down."""


def op_table(shape: ModelShape, machine: Roofline, ops: OpLatencies) -> DeviceTable:
    """Put the table of a model together.

    Raises:
        ValueError: an operation of it was not measured.
    """
    if shape.dtype_bytes != 2:
        raise ValueError(f"model {shape.name}: aiconfigurator's latencies are taken in 16 bits; set compute=roofline")
    sizes, logits = gemm_sizes(shape), (shape.vocab, shape.hidden)
    gemms = ops.gemm([*sizes, logits])
    experts = None if shape.mixture is None else Curve(ops.experts(shape).items())
    share = 1.0 if shape.mixture is None else shape.mixture.expert_share
    layer = _common([gemms[size] for size in sizes])
    others = {
        n: round(ns + small_ns(machine, shape, n) + (share * experts(n) if experts else 0)) for n, ns in layer.items()
    }
    timings = [
        *(_timing(Part.OTHERS, 0, n, 0, ns) for n, ns in others.items()),
        *_decodes(shape, ops, Curve(others.items())),
        *_prefills(shape, ops, Curve(others.items())),
        *_heads(machine, gemms[logits]),
        *_hosts(machine),
    ]
    about = {"device": f"{ops.gpu}, aiconfigurator-core's operations"}
    return DeviceTable(shape=shape, padding=Padding(), about=about, timings=tuple(timings))


def _common(curves: Sequence[Points]) -> Points:
    """The sum of points where all of them are there."""
    first, *others = curves
    tokens = [n for n in sorted(first) if all(n in points for points in others)]
    return {n: sum(points[n] for points in curves) for n in tokens}


def _decodes(shape: ModelShape, ops: OpLatencies, others: Curve) -> Iterator[Timing]:
    for n_seqs, points in sorted(ops.decode(shape).items()):
        for contexts, ns in sorted(points.items()):
            if contexts <= n_seqs * shape.max_context_tokens and n_seqs <= others.last:
                yield _timing(Part.DECODE_LAYER, n_seqs, n_seqs, contexts, others(n_seqs) + ns)


def _prefills(shape: ModelShape, ops: OpLatencies, others: Curve) -> Iterator[Timing]:
    found = ops.prefill(shape)
    whole = Curve(found[1].items(), rising=True)
    for n_seqs, points in sorted(found.items()):
        for each, ns in sorted(points.items()):
            if n_seqs * each <= others.last:
                yield _timing(Part.PREFILL_LAYER, n_seqs, n_seqs * each, 0, others(n_seqs * each) + ns)
    for n in sorted(found[1]):
        if n <= others.last:
            behind_ns = round(whole(n + BEHIND_TOKENS) * _pairs(n, BEHIND_TOKENS) / _pairs(n + BEHIND_TOKENS, 0))
            ns = others(n) + max(behind_ns, whole(n))
            yield _timing(Part.PREFILL_LAYER, 1, n, BEHIND_TOKENS, ns)


def _pairs(n_tokens: int, behind: int) -> int:
    return n_tokens * (2 * behind + n_tokens + 1) // 2


def _heads(machine: Roofline, logits: Points) -> Iterator[Timing]:
    head_ns = round(machine.head_s * NS_PER_S)
    yield _timing(Part.HEAD, 0, 0, 0, head_ns)
    for n, ns in logits.items():
        yield _timing(Part.HEAD, n, n, 0, head_ns + ns)


def _hosts(machine: Roofline) -> Iterator[Timing]:
    for n in (1, MOST_SEQS):
        ns = round(machine.host_scale * (machine.host_s + machine.host_sequence_s * n) * NS_PER_S)
        yield _timing(Part.DECODE_HOST, n, n, 0, ns)
        yield _timing(Part.PREFILL_HOST, n, n, 0, ns)
        yield _timing(Part.LAUNCH, n, n, 0, 0)  # replayed from graphs


def _timing(part: Part, n_seqs: int, n_tokens: int, context_tokens: int, ns: int) -> Timing:
    return Timing(
        part=part,
        n_seqs=n_seqs,
        n_tokens=n_tokens,
        context_tokens=context_tokens,
        ns=ns,
        spread_ns=0,
        n_samples=1,
    )
