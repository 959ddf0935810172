from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.backend import Batch, Change
from policies.memory.ops import Load
from policies.types import NS_PER_S, LinkProfile, Work
from sim.backend import SimBackend
from sim.compute.fit import decode, prefill
from sim.link import MILLION, Copy, Link
from sim.pipeline import Pipeline
from sim.vmm import VmmCost
from tests.engine.null_backend import Pace
from tests.engine.worlds import LinearCompute, Setup

BYTE_A_NS = LinkProfile(h2d_bytes_per_s=NS_PER_S, d2h_bytes_per_s=NS_PER_S, joint_bytes_per_s=2 * NS_PER_S)

ppms = st.integers(0, 500_000)
turns = st.lists(
    st.tuples(st.lists(st.integers(1, 5_000), max_size=2), st.integers(0, 5_000), st.booleans()),
    min_size=1,
    max_size=10,
)
"""Copies that are requested, what is computed then, and whether the last copy is waited for."""


class Fluid:
    """Copies of one direction and a computation that slow each other, in exact fractions of a nanosecond."""

    def __init__(self, slowdown_ppm: int, copy_slowdown_ppm: int) -> None:
        self.now = Fraction(0)
        self._left: deque[Fraction] = deque()
        self._computes, self._copies = (1 / (1 + Fraction(ppm, MILLION)) for ppm in (slowdown_ppm, copy_slowdown_ppm))

    def request(self, n_bytes: int) -> None:
        self._left.append(Fraction(n_bytes))

    def compute(self, work: int) -> None:
        left = Fraction(work)
        while left:
            if not self._left:
                self.now, left = self.now + left, Fraction(0)
                continue
            lasts = min(left / self._computes, self._left[0] / self._copies)
            left -= lasts * self._computes
            self._pass(lasts, lasts * self._copies)

    def wait(self) -> None:
        while self._left:
            self._pass(self._left[0], self._left[0])

    def _pass(self, lasts: Fraction, copied: Fraction) -> None:
        self.now += lasts
        self._left[0] -= copied
        if not self._left[0]:
            self._left.popleft()


@given(turns, ppms, ppms)
def test_computation_and_copies_that_slow_each_other_end_when_a_fluid_would(
    turns: list[tuple[list[int], int, bool]], slowdown_ppm: int, copy_slowdown_ppm: int
) -> None:
    link, fluid, now_ns, n_roundings = (
        Link(BYTE_A_NS, slowdown_ppm, copy_slowdown_ppm),
        Fluid(slowdown_ppm, copy_slowdown_ppm),
        0,
        0,
    )
    last: Copy | None = None
    for copies, work_ns, waits in turns:
        for n_bytes in copies:
            last = link.h2d(n_bytes, now_ns)
            fluid.request(n_bytes)
        now_ns = link.compute_until(now_ns, work_ns)
        fluid.compute(work_ns)
        if waits and last is not None:
            now_ns = max(now_ns, last.end_ns)
            fluid.wait()
        n_roundings += 2 * len(copies) + 2
        assert abs(now_ns - fluid.now) <= 2 * n_roundings


@given(turns, ppms)
def test_without_a_slowdown_of_copies_none_is_late(turns: list[tuple[list[int], int, bool]], slowdown_ppm: int) -> None:
    link, now_ns = Link(BYTE_A_NS, slowdown_ppm), 0
    for copies, work_ns, _ in turns:
        requested = [link.h2d(n_bytes, now_ns) for n_bytes in copies]
        ends_ns = [copy.end_ns for copy in requested]
        now_ns = link.compute_until(now_ns, work_ns)
        assert [copy.end_ns for copy in requested] == ends_ns


def test_a_step_that_waits_for_its_fetches_pays_for_what_computes_beside_them() -> None:
    def steady_ns(copy_slowdown_ppm: int) -> int:
        pipeline = Pipeline([10_000] * 4, Link(BYTE_A_NS, copy_slowdown_ppm=copy_slowdown_ppm))
        pipeline.set_cycle([0, 1, 2, 3], [0], 0)
        ends_ns = [0]
        for _ in range(8):
            ends_ns.append(pipeline.step(ends_ns[-1], 1_000, 0, 2_000)[0])
        return ends_ns[-1] - ends_ns[-2]

    alone_ns, beside_ns = steady_ns(0), steady_ns(250_000)
    assert alone_ns == 4 * 11_000
    assert beside_ns == alone_ns + 400, "2,000 ns behind the last layer run beside a fetch: 1,600 of its bytes move"


@pytest.mark.parametrize(("of_prompts", "slower"), [((500_000, None), 1.5), ((None, None), 1.1), ((0, None), 1.0)])
def test_steps_with_prompts_are_slowed_as_they_were_measured(
    of_prompts: tuple[int | None, int | None], slower: float
) -> None:
    """A long load is on the link all the time: computation is beside it to its end."""
    setup = Setup(world="sim", pace=Pace(step_ns=4_000_000, fetch_ns=10**10, rest_ns=0))
    shape = setup.models[0].shape("any")

    def layers_ns(work: Work, slowed: tuple[int | None, int | None], slowdown_ppm: int) -> int:
        backend = SimBackend(
            [shape],
            setup.hardware(),
            [LinearCompute(setup.pace)],
            vmm=VmmCost(range_ns=0, page_ns=0),
            slowdown_ppm=slowdown_ppm,
            prefill_slowdowns_ppm=slowed,
        )
        backend.apply(Change((Load(0, 0, 0),)))
        backend.submit(0, Batch(work), 1, 0)
        report = backend.advance(None)
        assert report is not None
        return report.ends_ns[0]

    prompt, token = prefill(64), decode(1, 64)
    assert layers_ns(prompt, of_prompts, 100_000) == pytest.approx(slower * layers_ns(prompt, (0, 0), 0), rel=1e-5)
    assert layers_ns(token, of_prompts, 100_000) == pytest.approx(1.1 * layers_ns(token, (0, 0), 0), rel=1e-5)


def test_a_step_with_a_prompt_has_fetches_slowed_as_they_were_measured() -> None:
    link = Link(BYTE_A_NS, prefill_slowdowns_ppm=(None, 250_000))
    for is_prefill, start_ns, end_ns in ((False, 0, 1_000), (True, 1_000, 2_250)):
        link.compute(is_prefill=is_prefill)
        copy = link.h2d(1_000, start_ns)
        link.compute_until(start_ns, 5_000)
        assert copy.end_ns == end_ns


@pytest.mark.parametrize("ppm", [{"copy_slowdown_ppm": -1}, {"prefill_slowdowns_ppm": (None, -1)}])
def test_a_negative_slowdown_of_copies_is_refused(ppm: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="copy_slowdown_ppm=-1 must be >= 0"):
        Link(BYTE_A_NS, **ppm)
