from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traces.formats.order import externally_sorted


@given(st.lists(st.integers(-3, 3), max_size=40), st.integers(1, 30), st.integers(1, 5))
def test_what_does_not_fit_into_memory_is_sorted_and_equals_keep_their_order(
    keys: list[int], run: int, weight: int
) -> None:
    items = list(enumerate(keys))
    made = externally_sorted(items, lambda item: item[1], weight=lambda _: weight, run=run)
    assert list(made) == sorted(items, key=lambda item: item[1])
