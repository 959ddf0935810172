"""Compute times from measured tables: what ``python -m executor profile`` found, interpolated.

On a GPU a step without prompt tokens runs as CUDA graphs, padded to the next number of
sequences that was measured (``Part.DECODE_LAYER`` has a row of contexts for each); where steps
are not padded, times are interpolated between two such rows as well. Every other step is
launched kernel by kernel: its layer takes the device as long as its parts together, or the
host as long as it takes to launch it, whichever is longer.

Between two measured points times are linear, in whole nanoseconds. Outside:

- below the first point the time is that of the first: launches and weights are there at any size;
- beyond the last it goes on along the last slope, where bandwidth or arithmetic binds. This is said once a part.

Along contexts times never fall: a dip of the measurement would let the second of two
repeated steps be shorter than the first, and it is noise.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from statistics import median_low

from policies.types import Work
from traces.device_tables import PADDED, DeviceTable, Part, Timing

logger = logging.getLogger(__name__)

FS_PER_NS = 10**6

Point = tuple[int, int]
"""Where, and nanoseconds there."""


class Curve:
    """Whole nanoseconds over an integer, linear between measured points (see above for the rest).

    Args:
        points: at least one, in any order, no two at the same place.
        rising: dips are filled up to what came before.
    """

    __slots__ = ("_at", "_ns", "last")

    def __init__(self, points: Iterable[Point], *, rising: bool = False) -> None:
        ordered = sorted(points)
        self._at = [at for at, _ in ordered]
        self._ns = [ns for _, ns in ordered]
        if rising:
            self._ns = list(accumulate(self._ns, max))
        if not ordered or len(set(self._at)) < len(ordered):
            raise ValueError(f"a curve needs points at different places, not {ordered}")
        self.last = self._at[-1]

    @property
    def points(self) -> list[Point]:
        """The measured points, in order, dips filled up."""
        return list(zip(self._at, self._ns, strict=True))

    def __call__(self, at: int) -> int:
        """Interpolate."""
        first, begin, rise, run = self._piece(at)
        return first + (at - begin) * rise // run

    def along(self, first: int, n: int, step: int) -> list[int]:
        """Interpolate at ``first``, ``first + step``, ... (``n`` places, ``step`` >= 1)."""
        values: list[int] = []
        end = first + n * step
        for at in self._at[1:-1]:
            if at > first:
                middle = min(end, first + -(-(at - first) // step) * step)
                values += self._on_one_piece(first, middle, step)
                first = middle
        return values + self._on_one_piece(first, end, step)

    def _on_one_piece(self, first: int, end: int, step: int) -> list[int]:
        """Interpolate where only the foot of the first piece is flat."""
        if first >= end:
            return []
        n_flat = max(0, -(-(min(end, self._at[0]) - first) // step))
        base, begin, rise, run = self._piece(first + n_flat * step)
        rest = range(first + n_flat * step, end, step)
        return [self._ns[0]] * n_flat + [base + (at - begin) * rise // run for at in rest]

    def _piece(self, at: int) -> tuple[int, int, int, int]:
        """The line that holds at a place: value at its begin, its begin, its rise over its run."""
        left = min(bisect_right(self._at, at), len(self._at) - 1) - 1
        if left < 0:
            return self._ns[0], at, 0, 1
        rise, run = self._ns[left + 1] - self._ns[left], self._at[left + 1] - self._at[left]
        return self._ns[left], self._at[left], rise, run


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
        self._decodes = _decode_curves(table)
        self._batches = sorted(self._decodes)
        self._is_padded = table.about.get("decode_steps") == PADDED
        self._prompt_attention, self._pair_fs = _prefill_curves(table, self._others)
        self._shared_ns = _shared_ns(table, self._others)
        self._of_a_batch: dict[int, tuple[Curve, int]] = {}
        self._heads_ns: dict[int, int] = {}
        self._hosts_ns: dict[int, int] = {}

    def layer_ns(self, work: Work) -> int:
        """Device time of one layer."""
        if work.n_prefill_tokens:
            return self._launched_ns(work)
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
        if work.n_prefill_tokens:
            return self._read(Part.PREFILL_HOST, self._prefill_host, work.n_prefill_seqs + work.n_decode_seqs)
        host_ns = self._hosts_ns.get(work.n_decode_seqs)
        if host_ns is None:
            host_ns = self._read(Part.DECODE_HOST, self._decode_host, work.n_decode_seqs)
            self._hosts_ns[work.n_decode_seqs] = host_ns
        return host_ns

    def _run_as(self, n_seqs: int) -> int:
        """As many sequences as a decode step is padded to; itself if it is not, or is more than was measured."""
        at = bisect_left(self._batches, n_seqs)
        return self._batches[at] if self._is_padded and at < len(self._batches) else n_seqs

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

    def _launched_ns(self, work: Work) -> int:
        """A layer whose kernels are launched one by one."""
        device_ns = self._read(Part.OTHERS, self._others, work.n_prefill_tokens + work.n_decode_seqs)
        device_ns += self._prompts_ns(work)
        if work.n_decode_seqs:
            curve, _ = self._batch(work.n_decode_seqs)
            without_ns = self._others(min(self._run_as(work.n_decode_seqs), self._batches[-1]))
            device_ns += max(0, curve(work.decode_context_tokens) - without_ns)
        return max(1, device_ns, self._read(Part.LAUNCH, self._launch, work.n_prefill_seqs))

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
    whole_ns = {timing.n_tokens: timing.ns for timing in timings if not timing.context_tokens}
    own = Curve((n_tokens, max(0, ns - others(n_tokens))) for n_tokens, ns in whole_ns.items())
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


def _shared_ns(table: DeviceTable, others: Curve) -> int:
    """What prompts of one step have in common: their K and V are stored at once.

    So n prompts of one length take n times one of them, less n - 1 times this.
    """
    timings = [timing for timing in table.of(Part.PREFILL_LAYER) if not timing.context_tokens]
    alone_ns = {each.n_tokens: each.ns - others(each.n_tokens) for each in timings if each.n_seqs == 1}
    saved_ns = [
        (n * alone_ns[each.n_tokens // n] - (each.ns - others(each.n_tokens))) // (n - 1)
        for each in timings
        if (n := each.n_seqs) > 1 and each.n_tokens // n in alone_ns
    ]
    return max(0, median_low(saved_ns)) if saved_ns else 0
