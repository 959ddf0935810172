"""Compute times of one rank of a mixture of experts from a measured table.

What ``python -m executor profile`` found is taken apart and put together as the executor runs it:

- Decodes alone run as graphs, padded to the next size there. What a layer takes of which its experts are no part
  follows from that size and the contexts; its experts from the tokens that there are, for they decide how many experts
  are read. Rows that only pad a step are all alike: together they are one token more.
- Every other step is launched kernel by kernel, nothing is padded. A layer takes what its tokens take without
  attention, the attention of prompts and of decodes, and its experts; or as long as the host needs to launch it, if
  that is more: then the device waits before the experts.

The times without experts are those of a dense model (``TableModel``) of which the experts have been taken. What ranks
sum up was not measured: it takes what ``Ranks`` say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policies.moe_setup import rank_shape
from policies.types import Work
from sim.compute.curve import Curve
from sim.compute.expert_reads import ExpertReads
from sim.compute.moe import LayerTimes, Ranks
from sim.compute.table import TableModel
from traces.measured.device_tables import DeviceTable, Padding, Part, Timing
from traces.measured.expert_tables import ExpertTimings

SHARED = (Part.OTHERS, Part.HEAD, Part.DECODE_HOST, Part.PREFILL_HOST)
"""Parts that a table without experts has from one with experts as they are."""

LAUNCHED = Timing(part=Part.LAUNCH, n_seqs=2**31, n_tokens=0, context_tokens=0, ns=0, spread_ns=0, n_samples=0)
"""Launching, of however many sequences, that takes no time."""


class ExpertTableModel:
    """The measured times of one rank of a model: a ``MoeCompute``.

    Args:
        table: what was measured, with its provenance.
        ranks: how the model is divided, and what sums over all of them take.

    Raises:
        ValueError: a part was not measured, or it was of another number of ranks.
    """

    def __init__(self, table: ExpertTimings, ranks: Ranks) -> None:
        if ranks.n_ranks != table.n_ranks:
            raise ValueError(
                f"the table of {table.shape.name} is of {table.n_ranks} ranks, not of {ranks.n_ranks}; measure it again"
            )
        shape = table.shape
        self._shape, self._ranks, self._padding = shape, ranks, table.padding
        self._experts = ExpertReads(table)
        self._launch_ns = max(each.ns for each in _measured(table, Part.LAUNCH))
        self._decodes = TableModel(_without_experts(table, self._experts))
        self._eager = TableModel(_eager(table))
        self._gate_up_share = shape.gate_up_bytes, shape.gate_up_bytes + shape.down_bytes

    def layers(self, work: Work) -> Sequence[LayerTimes]:
        """The times of every layer; all are one object."""
        times = self._launched(work) if work.n_prefill_tokens else self._graphed(work)
        return [times] * self._shape.n_layers

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers; a decode step samples its padding, too."""
        return self._decodes.head_ns(work)

    def host_ns(self, work: Work) -> int:
        """Time of the host beside the device: scheduling, inputs, outputs."""
        return self._decodes.host_ns(work)

    def _graphed(self, work: Work) -> LayerTimes:
        """A layer of a step of decodes."""
        n_seqs = work.n_decode_seqs
        pads = n_seqs not in self._padding.decode_seqs and n_seqs < max(self._padding.decode_seqs, default=0)
        return self._layer(self._decodes.layer_ns(work), self._experts.decodes_ns(n_seqs + pads), n_seqs)

    def _launched(self, work: Work) -> LayerTimes:
        """A layer of a step with prompts."""
        times = self._layer(self._eager.layer_ns(work), self._experts.ns(work), work.n_tokens)
        waits_ns = max(0, self._launch_ns - times.all_ns)
        return replace(times, mixer_ns=times.mixer_ns + waits_ns)

    def _layer(self, mixer_ns: int, experts_ns: int, n_tokens: int) -> LayerTimes:
        """Put a layer together. Both GEMMs were measured at once: each has its share of the bytes."""
        part, whole = self._gate_up_share
        gate_up_ns = experts_ns * part // whole
        reduce_ns = self._ranks.sum_ns(n_tokens, self._shape.hidden)
        return LayerTimes(mixer_ns, gate_up_ns, experts_ns - gate_up_ns, reduce_ns)


def _without_experts(table: ExpertTimings, experts: ExpertReads) -> DeviceTable:
    """Decode steps as those of a dense model, which their experts have been taken from."""
    decodes = [
        replace(each, ns=max(0, each.ns - experts.decodes_ns(each.n_tokens)))
        for each in _measured(table, Part.DECODE_LAYER)
    ]
    return _dense(table, table.padding, [*decodes, *_prompts(table)])


def _eager(table: ExpertTimings) -> DeviceTable:
    """Steps that are launched kernel by kernel as those of a dense model: attention comes on top of all else."""
    others = _others(table)
    decodes = [
        replace(each, part=Part.DECODE_LAYER, ns=others(each.n_tokens) + each.ns)
        for each in _measured(table, Part.DECODE_ATTENTION)
    ]
    return _dense(table, Padding(), [*decodes, *_prompts(table)])


def _prompts(table: ExpertTimings) -> list[Timing]:
    """Prompts, out of what they take without attention and of attention alone."""
    others = _others(table)
    return [
        replace(each, part=Part.PREFILL_LAYER, ns=others(each.n_tokens) + each.ns)
        for each in _measured(table, Part.PREFILL_ATTENTION)
    ]


def _dense(table: ExpertTimings, padding: Padding, timings: Iterable[Timing]) -> DeviceTable:
    """A table of a dense model, whose layers are launched in no time: that counts for both pieces together."""
    shape = rank_shape(table.shape, table.n_ranks, table.shape.experts(table.n_ranks, page_bytes=1))
    shared = [each for part in SHARED for each in _measured(table, part)]
    return DeviceTable(shape=shape, padding=padding, about=table.about, timings=(*shared, LAUNCHED, *timings))


def _others(table: ExpertTimings) -> Curve:
    return Curve((each.n_tokens, each.ns) for each in _measured(table, Part.OTHERS))


def _measured(table: ExpertTimings, part: Part) -> list[Timing]:
    if timings := table.of(part):
        return timings
    raise ValueError(f"the table of {table.shape.name} has no {part.value}; measure it again, or set compute=roofline")
