"""Figures of the answer's page."""

from __future__ import annotations

from itertools import pairwise
from math import floor, log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.planning.figures import marks


@given(st.floats(-1e4, 1e4), st.floats(1e-2, 1e4))
def test_an_axis_has_some_round_marks_within_it(low: float, span: float) -> None:
    found = marks(low, low + span)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-6 * span <= mark <= low + span + 1e-6 * span for mark in found)
    step = found[1] - found[0]
    assert all(after - before == pytest.approx(step, rel=1e-3) for before, after in pairwise(found))
    assert round(step / 10 ** floor(log10(step * 1.0001)), 3) in (1, 2, 5)
