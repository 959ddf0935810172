"""How many layers: closed forms of a step with cycling layers."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from policies.remap.how_many import one_slot_step_ns, slots_to_use, step_ns
from policies.remap.which_layers import evenly_spaced

times = st.integers(1, 10**6)


def play(n_layers: int, cycling: tuple[int, ...], n_slots: int, layer_ns: int, fetch_ns: int, rest_ns: int) -> int:
    """The slot recurrence written out over 60 tokens, visit by visit: independent of the product's loop."""
    done: list[int] = []  # when each visit of a cycling layer finished
    ends: list[int] = []
    fetch_free = now = 0
    for _ in range(60):
        for layer in range(n_layers):
            if layer in cycling:
                visit = len(done)
                fetched = 0
                if visit >= n_slots:
                    fetched = max(fetch_free, done[visit - n_slots]) + fetch_ns
                    fetch_free = fetched
                now = max(now, fetched) + layer_ns
                done.append(now)
            else:
                now += layer_ns
        now += rest_ns
        ends.append(now)
    return ends[-1] - ends[-2]


@given(st.integers(3, 48), st.data(), times, times, st.integers(0, 10**6))
def test_the_sum_over_gaps_is_the_steady_step_with_one_slot(
    n: int, data: st.DataObject, layer_ns: int, fetch_ns: int, rest_ns: int
) -> None:
    cycling = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=n))))
    assert one_slot_step_ns(n, cycling, layer_ns, fetch_ns, rest_ns) == play(n, cycling, 1, layer_ns, fetch_ns, rest_ns)


@given(st.integers(4, 48), st.data(), times, times, st.integers(0, 10**6))
def test_a_few_tokens_are_enough_for_the_steady_step_with_two_slots(
    n: int, data: st.DataObject, layer_ns: int, fetch_ns: int, rest_ns: int
) -> None:
    cycling = tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=3, max_size=n))))
    played = play(n, cycling, 2, layer_ns, fetch_ns, rest_ns)
    assert abs(step_ns(n, cycling, 2, layer_ns, fetch_ns, rest_ns) - played) <= played // 100


@given(st.sampled_from([(40, 4), (40, 5), (40, 8), (40, 10), (48, 6), (32, 8)]), times, times)
def test_one_slot_stalls_exactly_beyond_equation_four(shape: tuple[int, int], layer_ns: int, fetch_ns: int) -> None:
    n, m = shape  # m divides n
    stalls = one_slot_step_ns(n, evenly_spaced(n, m), layer_ns, fetch_ns, 0) > n * layer_ns
    assert stalls == (fetch_ns > (n // m - 1) * layer_ns)


@given(st.sampled_from([(40, 4), (40, 5), (40, 8), (40, 10), (48, 6), (32, 8)]), times, times)
def test_two_slots_stall_exactly_beyond_equation_five(shape: tuple[int, int], layer_ns: int, fetch_ns: int) -> None:
    n, m = shape
    stalls = play(n, evenly_spaced(n, m), 2, layer_ns, fetch_ns, 0) > n * layer_ns
    assert stalls == (fetch_ns > n // m * layer_ns)


def test_two_slots_first_win_at_nine_layers_where_the_paper_says_so() -> None:
    # Golden: MIRAGE section 5.4, "alpha >= 9" at n = 40, which holds at T_T / T_c = 4000 / 427 (HBM over C2C).
    n, layer_ns, fetch_ns = 40, 427, 4000
    one = [step_ns(n, evenly_spaced(n, alpha + 1), 1, layer_ns, fetch_ns, 0) for alpha in range(1, 30)]
    two = [step_ns(n, evenly_spaced(n, alpha + 2), 2, layer_ns, fetch_ns, 0) for alpha in range(1, 30)]
    chosen = [slots_to_use("auto", alpha, 0, s1, s2) for alpha, s1, s2 in zip(range(1, 30), one, two, strict=True)]
    assert chosen.index(2) + 1 == 9
    assert all(before <= after for before, after in pairwise(chosen))
