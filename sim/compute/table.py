"""Compute times from measured tables: what ``python -m executor profile`` found, interpolated.

On a GPU some steps run as CUDA graphs and are padded to the next size there (``DeviceTable.padding``):

- Decodes alone, to a number of sequences. ``Part.DECODE_LAYER`` has a row of contexts for each; where steps are
  not padded, times are interpolated between two such rows as well.
- Prefills alone, of not too many tokens and sequences. A layer takes what the padded number of tokens takes without
  attention, and the attention of the prompts that are there.

Every other step is launched kernel by kernel: its layer takes the device as long as its parts
together, or the host as long as it takes to launch it, whichever is longer. (The executor also
launches prefills so if a piece of a prompt is a single token; ``Work`` does not tell.)

Between two measured points and outside of them times are as ``Curve`` has it; what goes beyond
the last point is said once a part.

Along contexts times never fall: a dip of the measurement would let the second of two
repeated steps be shorter than the first, and it is noise.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from statistics import median_low

from policies.types import Work
from sim.compute.base import ends_of
from sim.compute.curve import Curve, Point
from traces.measured.device_tables import DeviceTable, Part, Timing

logger = logging.getLogger(__name__)

FS_PER_NS = 10**6


class TableModel:
    """The measured times of one model on one device: a ``ComputeModel``.

    Attributes:
        table: what was measured, with its provenance.
        outside: parts that were asked for beyond what was measured.

    Raises:
        ValueError: a part was not measured.
    """

    def __init__(self, table: DeviceTable) -> None:
        self.table = table
        self.outside: set[Part] = set()
        self._others = _curve(table, Part.OTHERS, _n_tokens)
        self._head = _curve(table, Part.HEAD, _n_seqs)
        self._launch = _curve(table, Part.LAUNCH, _n_seqs)
        self._decode_host = _curve(table, Part.DECODE_HOST, _n_seqs)
        self._prefill_host = _curve(table, Part.PREFILL_HOST, _n_seqs)
        is_graphed = bool(table.padding.prefill_tokens)
        self._graphed_host = _curve(table, Part.GRAPHED_PREFILL_HOST, _n_seqs) if is_graphed else self._prefill_host
        self._decodes = _decode_curves(table)
        self._batches = sorted(self._decodes)
        self._prompt_attention, self._pair_fs = _prefill_curves(table, self._others)
        self._shared_ns = _shared_ns(table, self._others)
        self._of_a_batch: dict[int, tuple[Curve, int]] = {}
        self._heads_ns: dict[int, int] = {}
        self._hosts_ns: dict[int, int] = {}

    def layer_ns(self, work: Work) -> int:
        """Device time of one layer."""
        if work.n_prefill_tokens:
            return self._prefill_ns(work)
        curve, more_ns = self._batch(work.n_decode_seqs)
        if work.decode_context_tokens > curve.last:
            self._note(Part.DECODE_LAYER)
        return curve(work.decode_context_tokens) + more_ns

    def repeated_layer_ns(self, work: Work, n_steps: int) -> Sequence[int]:
        """Device time of one layer in each of ``n_steps`` repetitions of a decode step."""
        if n_steps == 1 or not work.n_decode_seqs:
            return [self.layer_ns(work)] * n_steps
        curve, more_ns = self._batch(work.n_decode_seqs)
        first, step = work.decode_context_tokens, work.n_decode_seqs
        if first + (n_steps - 1) * step > curve.last:
            self._note(Part.DECODE_LAYER)
        layers_ns = curve.along(first, n_steps, step)
        return [ns + more_ns for ns in layers_ns] if more_ns else layers_ns

    def repeated_ends_ns(
        self, work: Work, n_steps: int, start_ns: int, n_layers: int, rest_ns: int, stop_ns: int
    ) -> list[int]:
        """See ``ends_of``."""
        return ends_of(self.repeated_layer_ns(work, n_steps), start_ns, n_layers, rest_ns, stop_ns)

    def head_ns(self, work: Work) -> int:
        """Device time outside the layers; a decode step samples its padding, too."""
        n_rows = work.n_sampled
        if work.n_prefill_tokens:
            return self._read(Part.HEAD, self._head, n_rows)
        head_ns = self._heads_ns.get(n_rows)
        if head_ns is None:
            head_ns = self._heads_ns[n_rows] = self._read(Part.HEAD, self._head, self._run_as(n_rows))
        return head_ns

    def host_ns(self, work: Work) -> int:
        """Time of the host beside the device: scheduling, inputs, outputs."""
        if self._graphed_rows(work) is not None:
            return self._read(Part.GRAPHED_PREFILL_HOST, self._graphed_host, work.n_prefill_seqs)
        if work.n_prefill_tokens:
            return self._read(Part.PREFILL_HOST, self._prefill_host, work.n_prefill_seqs + work.n_decode_seqs)
        host_ns = self._hosts_ns.get(work.n_decode_seqs)
        if host_ns is None:
            host_ns = self._read(Part.DECODE_HOST, self._decode_host, work.n_decode_seqs)
            self._hosts_ns[work.n_decode_seqs] = host_ns
        return host_ns

    def _run_as(self, n_seqs: int) -> int:
        """As many sequences as a decode step is padded to; itself if it is not."""
        sizes = self.table.padding.decode_seqs
        at = bisect_left(sizes, n_seqs)
        return sizes[at] if at < len(sizes) else n_seqs

    def _graphed_rows(self, work: Work) -> int | None:
        """As many tokens as a step of prefills alone is padded to; ``None`` for any other, or if no graph holds it."""
        if work.n_decode_seqs or not work.n_prefill_tokens:
            return None
        return self.table.padding.prefill_rows(work.n_prefill_tokens, work.n_prefill_seqs)

    def _batch(self, n_seqs: int) -> tuple[Curve, int]:
        """Layer time of a decode step over its contexts, and what GEMMs beyond the largest measured one add."""
        known = self._of_a_batch.get(n_seqs)
        if known is None:
            n_run, most = self._run_as(n_seqs), self._batches[-1]
            if n_run > most:
                self._note(Part.DECODE_LAYER)
                known = self._decodes[most], self._others(n_run) - self._others(most)
            elif n_run in self._decodes:
                known = self._decodes[n_run], 0
            else:
                known = self._between_batches(n_run), 0
            self._of_a_batch[n_seqs] = known
        return known

    def _between_batches(self, n_seqs: int) -> Curve:
        """Interpolate between two rows of contexts, at the same mean contexts."""
        at = bisect_left(self._batches, n_seqs)
        more, fewer = self._batches[at], self._batches[max(0, at - 1)]
        points: list[Point] = []
        for context, more_ns in self._decodes[more].points:
            fewer_ns = self._decodes[fewer](context * fewer // more)
            between_ns = (
                more_ns if more == fewer else fewer_ns + (more_ns - fewer_ns) * (n_seqs - fewer) // (more - fewer)
            )
            points.append((context * n_seqs // more, between_ns))
        return Curve(dict(points).items(), rising=True)

    def _prefill_ns(self, work: Work) -> int:
        """A layer of a step with prompts, from a graph or launched kernel by kernel."""
        n_rows = self._graphed_rows(work)
        if n_rows is not None:
            return max(1, self._others(n_rows) + self._prompts_ns(work))
        n_seqs = work.n_prefill_seqs + work.n_decode_seqs
        device_ns = self._read(Part.OTHERS, self._others, work.n_prefill_tokens + work.n_decode_seqs)
        device_ns += self._prompts_ns(work)
        if work.n_decode_seqs:
            curve, _ = self._batch(work.n_decode_seqs)
            without_ns = self._others(min(self._run_as(work.n_decode_seqs), self._batches[-1]))
            device_ns += max(0, curve(work.decode_context_tokens) - without_ns)
        return max(1, device_ns, self._read(Part.LAUNCH, self._launch, n_seqs))

    def _prompts_ns(self, work: Work) -> int:
        """Attention of the prompts, taken as equally long: what they share once, the rest for each.

        Pairs beyond those of whole prompts of that length, for the tokens stand behind others or
        the lengths differ, cost what a pair costs behind other tokens.
        """
        n_seqs = work.n_prefill_seqs
        n_tokens, n_pairs = work.n_prefill_tokens // n_seqs, work.prefill_pairs // n_seqs
        more_pairs = max(0, n_pairs - n_tokens * (n_tokens + 1) // 2)
        alone_ns = self._read(Part.PREFILL_LAYER, self._prompt_attention, n_tokens)
        shared_ns = min(self._shared_ns, alone_ns)
        return shared_ns + n_seqs * (alone_ns - shared_ns + more_pairs * self._pair_fs(n_tokens) // FS_PER_NS)

    def _read(self, part: Part, curve: Curve, at: int) -> int:
        if at > curve.last:
            self._note(part)
        return curve(at)

    def _note(self, part: Part) -> None:
        """Say once that a part is extrapolated."""
        if part not in self.outside:
            self.outside.add(part)
            model, device = self.table.shape.name, self.table.about.get("device", "?")
            logger.warning("%s of %s goes beyond what was measured on %s: extrapolated", part.value, model, device)


def _n_tokens(timing: Timing) -> int:
    return timing.n_tokens


def _n_seqs(timing: Timing) -> int:
    return timing.n_seqs


def _measured(table: DeviceTable, part: Part) -> list[Timing]:
    if timings := table.of(part):
        return timings
    raise ValueError(f"the table of {table.shape.name} has no {part.value}; measure it again, or set compute=roofline")


def _curve(table: DeviceTable, part: Part, at: Callable[[Timing], int]) -> Curve:
    return Curve((at(timing), timing.ns) for timing in _measured(table, part))


def _decode_curves(table: DeviceTable) -> dict[int, Curve]:
    """For each number of sequences that decode steps are padded to, a layer over the sum of contexts."""
    rows: dict[int, list[Point]] = {}
    for timing in _measured(table, Part.DECODE_LAYER):
        rows.setdefault(timing.n_seqs, []).append((timing.context_tokens, timing.ns))
    return {n_seqs: Curve(points, rising=True) for n_seqs, points in rows.items()}


def _prefill_curves(table: DeviceTable, others: Curve) -> tuple[Curve, Curve]:
    """Attention of a whole prompt over its tokens, and femtoseconds of a pair behind other tokens over the new ones."""
    timings = [timing for timing in _measured(table, Part.PREFILL_LAYER) if timing.n_seqs == 1]
    whole = [timing for timing in timings if not timing.context_tokens]
    whole_ns = {timing.n_tokens: timing.ns for timing in whole}
    own = Curve((timing.n_tokens, max(0, attention_ns(table, others, timing))) for timing in whole)
    behind: dict[int, Point] = {}  # by new tokens the longest context: its slope is the surest
    for timing in sorted(timings, key=lambda each: each.context_tokens):
        if timing.context_tokens and timing.n_tokens in whole_ns:
            more_ns = max(0, timing.ns - whole_ns[timing.n_tokens])
            pair_fs = more_ns * FS_PER_NS // (timing.n_tokens * timing.context_tokens)
            behind[timing.n_tokens] = (timing.n_tokens, pair_fs)
    if not behind:
        raise ValueError(
            f"the table of {table.shape.name} has no {Part.PREFILL_LAYER.value} behind other tokens; measure it again"
        )
    return own, Curve(behind.values())


def attention_ns(table: DeviceTable, others: Curve, timing: Timing) -> int:
    """What attention adds to a layer of a step of prefills, padded as it was."""
    n_rows = table.padding.prefill_rows(timing.n_tokens, timing.n_seqs)
    return timing.ns - others(timing.n_tokens if n_rows is None else n_rows)


def _shared_ns(table: DeviceTable, others: Curve) -> int:
    """What prompts of one step have in common: their K and V are stored at once.

    So n prompts of one length take n times one of them, less n - 1 times this.
    """
    timings = [timing for timing in table.of(Part.PREFILL_LAYER) if not timing.context_tokens]
    alone_ns = {each.n_tokens: attention_ns(table, others, each) for each in timings if each.n_seqs == 1}
    saved_ns = [
        (n * alone_ns[each.n_tokens // n] - attention_ns(table, others, each)) // (n - 1)
        for each in timings
        if (n := each.n_seqs) > 1 and each.n_tokens // n in alone_ns
    ]
    return max(0, median_low(saved_ns)) if saved_ns else 0
