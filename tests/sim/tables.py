"""A measured table made from a roofline: what is read out of it has a known answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from policies.types import ModelShape, Work
from sim.compute.base import ComputeModel
from sim.compute.fit import decode, prefill
from traces.measured.device_tables import DeviceTable, Padding, Part, Timing

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (16, 128, 512, 2048)
AROUND_THE_KNEE = (96, 128, 160, 192, 224)
PROMPTS = (16, 64, 256, 1024, 2048)
BEHIND = 1024
TOGETHER = (64, 256)


def sampled_from(model: ComputeModel, shape: ModelShape) -> DeviceTable:
    """What measuring ``model`` without noise gives, at the points above; nothing is bound by launches."""
    padding = Padding(decode_seqs=BUCKETS)
    return DeviceTable(shape=shape, padding=padding, about={"device": "made up"}, timings=tuple(_timings(model)))


def _timings(model: ComputeModel) -> Iterator[Timing]:
    for n in BUCKETS:
        for context in CONTEXTS:
            yield timing(Part.DECODE_LAYER, n, n, n * context, model.layer_ns(decode(n, n * context)))
        yield timing(Part.DECODE_HOST, n, n, 0, model.host_ns(decode(n, n)))
        yield timing(Part.PREFILL_HOST, n, n, 0, model.host_ns(decode(n, n)))
        yield timing(Part.GRAPHED_PREFILL_HOST, n, n, 0, model.host_ns(decode(n, n)) // 2)
        yield timing(Part.HEAD, n, n, 0, model.head_ns(decode(n, n)))
        yield timing(Part.LAUNCH, n, n, 0, n)
    others_ns = _others_of(model)
    for n in (*BUCKETS, *AROUND_THE_KNEE, *PROMPTS[2:]):
        yield timing(Part.OTHERS, 0, n, 0, others_ns(n))
    for n in PROMPTS:
        yield timing(Part.PREFILL_LAYER, 1, n, 0, model.layer_ns(prefill(n)))
        yield timing(Part.PREFILL_LAYER, 1, n, BEHIND, model.layer_ns(behind(n, BEHIND)))
    for n in TOGETHER:
        yield timing(Part.PREFILL_LAYER, 4, 4 * n, 0, model.layer_ns(prompts([(n, 0)] * 4)))


def timing(part: Part, n_seqs: int, n_tokens: int, context_tokens: int, ns: int) -> Timing:
    return Timing(
        part=part,
        n_seqs=n_seqs,
        n_tokens=n_tokens,
        context_tokens=context_tokens,
        ns=ns,
        spread_ns=0,
        n_samples=1,
    )


def behind(n_tokens: int, n_before: int) -> Work:
    """A prefill step of ``n_tokens`` behind ``n_before`` that are in the cache."""
    return prompts([(n_tokens, n_before)])


def prompts(parts: Sequence[tuple[int, int]]) -> Work:
    """A prefill step of several sequences: new tokens, and tokens before them."""
    return Work(
        n_prefill_tokens=sum(new for new, _ in parts),
        n_prefill_seqs=len(parts),
        prefill_pairs=sum(new * (2 * before + new + 1) // 2 for new, before in parts),
        n_decode_seqs=0,
        decode_context_tokens=0,
        n_sampled=len(parts),
    )


def _others_of(model: ComputeModel) -> Callable[[int], int]:
    """A layer without attention: the prefill of tokens that see nothing."""

    def ns(n_tokens: int) -> int:
        nothing_seen = Work(
            n_prefill_tokens=n_tokens,
            n_prefill_seqs=1,
            prefill_pairs=0,
            n_decode_seqs=0,
            decode_context_tokens=0,
            n_sampled=0,
        )
        return model.layer_ns(nothing_seen)

    return ns
