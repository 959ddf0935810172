"""Attention of a step out of a layer profile: prompts and decodes of one step together.

A profile has steps of one prompt and decodes of equal contexts. Other steps are taken to be like one of those:

- Decodes count with their mean context. Where their contexts differ, the longest keeps one part of the GPU busy when
  the others are done; how far a step is on the way from all having the mean to all having the longest was measured
  for pairs of lengths (``skew.csv``): the weighted median of that share, by decodes and new prompt tokens.
- Several prompts count as one of as many new tokens whose tokens have as many keys in the mean. With fewer keys than
  one prompt of that size has by itself, they count as equal prompts that have them, computed one after another: what
  even the smallest takes is there once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import log

from policies.types import Work
from sim.compute.grid import Grid
from traces.measured.layer_profile import AttentionTiming, UnevenTiming

PARTS = 64
"""Means of tokens are kept to so many parts of one."""

UNMEASURED, UNMEASURED_BESIDE_PROMPTS = 0.03, 0.02
"""The share of the longest where a profile has no ``skew.csv``: the weighted median of all that was measured on an RTX
4090 (327 steps of decodes alone, 12,671 beside prompts: 0.0295 and 0.0185)."""


class Attention:
    """Attention of one layer.

    Args:
        timings: at least one of decodes alone; without prompts, or prompts beside decodes, see ``Attention.ns``.
        uneven: decodes of different contexts; empty: see ``UNMEASURED``.
    """

    def __init__(self, timings: Sequence[AttentionTiming], uneven: Sequence[UnevenTiming]) -> None:
        decodes = [each for each in timings if not each.n_new]
        prompts = [each for each in timings if each.n_new]
        self._decodes = Grid(((each.n_decodes, PARTS * each.context_tokens), each.ns) for each in decodes)
        alone = [each for each in prompts if not each.n_decodes]
        beside = {each[:2] for each in prompts if each.n_decodes}
        self._prompts = Grid(((each.n_new, _before(each)), each.ns) for each in alone) if alone else None
        mixed = [each for each in prompts if each[:2] in beside]
        self._mixed = Grid(map(_corner, mixed)) if mixed else None
        self._least_ns = min((each.ns for each in alone), default=0)
        self._shares = Shares(uneven)

    def ns(self, work: Work, longest_tokens: int, n_run: int) -> int:
        """Duration of one layer's attention.

        Where prompts beside decodes were not measured, they are the sum of both.

        Args:
            longest_tokens: the longest context among the decodes, 0 if it is not known.
            n_run: decodes for which the kernel is set up, padding included.

        Raises:
            ValueError: there are prompts, and none were measured.
        """
        n_new, n_decodes = work.n_prefill_tokens, work.n_decode_seqs
        mean = PARTS * work.decode_context_tokens // n_decodes if n_decodes else 0
        ns = self._at(work, mean)
        if n_decodes > 1 and PARTS * longest_tokens > mean:
            share = self._shares.of(n_run if not n_new else n_decodes, n_new)
            if share:
                ns += max(0, round(share * (self._at(work, PARTS * longest_tokens) - ns)))
        return ns

    def _at(self, work: Work, context: int) -> int:
        """With decodes of equal contexts."""
        n_new, n_decodes = work.n_prefill_tokens, work.n_decode_seqs
        if not n_new:
            return self._decodes(n_decodes, context) if n_decodes else 0
        if self._prompts is None:
            raise ValueError("attention.csv has no prompts (prefill_chunk > 0)")
        key_halves = PARTS * (2 * work.prefill_pairs - n_new) // n_new
        before = max(0, key_halves - PARTS * n_new)
        ns = self._prompts(n_new, before) if key_halves >= PARTS * n_new else self._apart(n_new, key_halves)
        if not n_decodes:
            return ns
        if self._mixed is None:
            return ns + self._decodes(n_decodes, context)
        return ns + max(0, self._mixed(n_new, before, n_decodes, context) - self._mixed(n_new, before, 0, 0))

    def _apart(self, n_new: int, key_halves: int) -> int:
        """Prompts as long as twice the mean keys of a token, as many as there are tokens for."""
        assert self._prompts is not None
        each_ns = self._prompts(max(1, key_halves // PARTS), 0)
        more_ns = (each_ns - self._least_ns) * (PARTS * n_new - key_halves) // max(1, key_halves)
        return each_ns + max(0, more_ns)


def _corner(timing: AttentionTiming) -> tuple[tuple[int, ...], int]:
    return (timing.n_new, _before(timing), timing.n_decodes, PARTS * timing.context_tokens), timing.ns


def _before(timing: AttentionTiming) -> int:
    """Twice the tokens before those of the prompt."""
    return PARTS * (timing.key_halves - timing.n_new)


class Shares:
    """How far decodes of different contexts are on the way from the mean context to the longest.

    The weighted median of what was measured, each weighed by how much it matters, makes the sum of
    relative errors least. Between numbers of decodes the share is linear in their logarithm, between numbers of new
    prompt tokens that of the nearest; decodes alone are apart from the others, for they run another kernel.
    """

    def __init__(self, uneven: Iterable[UnevenTiming]) -> None:
        found: dict[int, dict[int, list[tuple[float, float]]]] = {}
        for n_decodes, n_new, mean_ns, longest_ns, ns in uneven:
            if longest_ns > mean_ns and ns:
                share, weight = (ns - mean_ns) / (longest_ns - mean_ns), (longest_ns - mean_ns) / ns
                found.setdefault(n_new, {}).setdefault(n_decodes, []).append((share, weight))
        self._by_new = {
            n_new: [(n, min(1.0, max(0.0, _weighted_median(shares)))) for n, shares in sorted(of_new.items())]
            for n_new, of_new in found.items()
        }
        self._with_new = sorted(n_new for n_new in found if n_new)

    def of(self, n_decodes: int, n_new: int) -> float:
        """The share of such a step."""
        if not self._by_new:
            return UNMEASURED_BESIDE_PROMPTS if n_new else UNMEASURED
        points = self._by_new.get(self._nearest(n_new) if n_new else 0)
        if not points:
            return 0.0
        right = min(bisect_left(points, (n_decodes, -1.0)), len(points) - 1)
        left = max(0, right - 1)
        (fewer, at_fewer), (more, at_more) = points[left], points[right]
        if n_decodes >= more or left == right:
            return at_more
        if n_decodes <= fewer:
            return at_fewer
        return at_fewer + (at_more - at_fewer) * log(n_decodes / fewer) / log(more / fewer)

    def _nearest(self, n_new: int) -> int:
        if not self._with_new:
            return -1
        at = bisect_right(self._with_new, n_new)
        around = self._with_new[max(0, at - 1) : at + 1]
        return min(around, key=lambda there: abs(log(there / n_new)))


def _weighted_median(values: list[tuple[float, float]]) -> float:
    half, reached = sum(weight for _, weight in values) / 2, 0.0
    for value, weight in sorted(values):
        reached += weight
        if reached >= half:
            return value
    raise AssertionError("weights are positive")
