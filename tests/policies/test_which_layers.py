"""Which layers cycle."""

from hypothesis import given
from hypothesis import strategies as st

from policies.remap.which_layers import contiguous, evenly_spaced, first_and_last, gaps, nested_order


@given(st.data(), st.integers(1, 128))
def test_gaps_around_the_decode_cycle_differ_by_at_most_one(data: st.DataObject, n_layers: int) -> None:
    chosen = evenly_spaced(n_layers, data.draw(st.integers(1, n_layers)))
    assert sum(gaps(n_layers, chosen)) == n_layers
    assert max(gaps(n_layers, chosen)) - min(gaps(n_layers, chosen)) <= 1


def test_one_remapped_layer_of_eight_uses_layers_one_and_five() -> None:
    # Golden: MIRAGE section 5.4, the example of Model-C with 8 layers (the paper counts from 1).
    assert [layer + 1 for layer in evenly_spaced(8, 2)] == [1, 5]


def test_first_and_last_is_the_choice_that_figure_seven_argues_against() -> None:
    # Golden: MIRAGE figure 7, layers 1 and 8 of 8 (counted from 1): a gap of one layer.
    assert [layer + 1 for layer in first_and_last(8, 2)] == [1, 8]
    assert gaps(8, first_and_last(8, 2)) == (7, 1)


@given(st.integers(3, 128))
def test_the_nested_order_names_every_layer_once(n_layers: int) -> None:
    assert sorted(nested_order(n_layers)) == list(range(n_layers))


@given(st.integers(8, 128), st.data())
def test_layers_nested_through_one_slot_leave_no_gap_below_half_of_the_even_one(
    n_layers: int, data: st.DataObject
) -> None:
    order = nested_order(n_layers)
    n_cycling = data.draw(st.integers(2, n_layers // 4))
    chosen = tuple(sorted((order[0], *order[2 : n_cycling + 1])))
    assert min(gaps(n_layers, chosen)) >= n_layers // n_cycling // 2
    assert max(gaps(n_layers, chosen)) <= 2 * -(-n_layers // n_cycling)


@given(st.integers(1, 64), st.data())
def test_every_placement_chooses_as_many_layers_as_asked(n_layers: int, data: st.DataObject) -> None:
    n_cycling = data.draw(st.integers(0, n_layers))
    for choose in (evenly_spaced, first_and_last, contiguous):
        chosen = choose(n_layers, n_cycling)
        assert len({*chosen}) == n_cycling
        assert list(chosen) == sorted(chosen)
        assert not chosen or 0 <= chosen[0] <= chosen[-1] < n_layers
