from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.prefix_cache import Content, Histories, PrefixCache
from tests.serving.drive import request

Pieces = tuple[tuple[str, int], ...]

pieces = st.lists(st.tuples(st.sampled_from(["a", "b", "out0", "out1"]), st.integers(0, 4)), min_size=1, max_size=4)


def _tokens(prompt: Pieces, request_id: int, n_output: int) -> list[tuple[str, int]]:
    named = (*prompt, (f"out{request_id}", n_output))
    return [(stream, i) for stream, n in named for i in range(n)]


@given(pieces.map(tuple), pieces.map(tuple), st.integers(1, 12), st.integers(1, 12))
def test_keys_are_equal_exactly_if_the_tokens_before_them_are(
    one: Pieces, other: Pieces, n_one: int, n_other: int
) -> None:
    histories = Histories()
    keys: list[object] = []
    prefixes: list[list[tuple[str, int]]] = []
    for request_id, (prompt, n_tokens) in enumerate([(one, n_one), (other, n_other)]):
        prompt = (*prompt, ("end", 1))
        content = Content(request(request_id, sum(n for _, n in prompt), prompt=prompt), histories)
        keys.append(content.key(n_tokens))
        prefixes.append(_tokens(prompt, request_id, 12)[:n_tokens])
    assert (keys[0] == keys[1]) == (prefixes[0] == prefixes[1])


def test_prompts_without_identity_share_nothing() -> None:
    histories = Histories()
    first, second = Content(request(0, 8), histories), Content(request(1, 8), histories)
    assert first.key(4) == first.key(4)
    assert first.key(4) != second.key(4)


def test_what_ran_longest_ago_is_evicted_first_and_of_a_sequence_its_end() -> None:
    cache = PrefixCache()
    for block, (stream, n_tokens) in enumerate([("a", 4), ("a", 8), ("b", 4), ("b", 8)]):
        cache.publish(block, (None, stream, n_tokens), n_tokens)
    cache.access([0, 1], 20)
    cache.access([2, 3], 10)
    for block in range(4):
        cache.rest(block)
    assert cache.idle_in_order() == [3, 2, 1, 0]
    assert [cache.evict() for _ in range(4)] == [3, 2, 1, 0]
    assert len(cache) == 0


def test_a_block_that_is_used_again_takes_its_new_place() -> None:
    cache = PrefixCache()
    for block, stream in enumerate("ab"):
        cache.publish(block, (None, stream, 4), 4)
        cache.access([block], block)
        cache.rest(block)
    cache.wake(0)
    cache.access([0], 5)
    cache.rest(0)
    assert [cache.evict(), cache.evict()] == [1, 0]


def test_blocks_of_the_step_being_composed_do_not_count_as_computed() -> None:
    cache = PrefixCache()
    cache.publish(0, (None, "a", 4), 4)
    assert cache.find((None, "a", 4)) == 0
    assert not cache.is_computed((None, "a", 4))
    cache.settle()
    assert cache.is_computed((None, "a", 4))
