"""What is counted once for all who decode together is what each would have counted for itself."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.blocks import BlockPool
from policies.serving.lockstep import Lockstep
from policies.serving.sequence import Sequence
from tests.serving.drive import request

BLOCK_TOKENS = 4
MAX_MODEL_LEN = 30


def started(request_id: int, n_prompt: int) -> Sequence:
    """A sequence whose prompt is computed and has given its first token."""
    seq = Sequence(request(request_id, n_prompt))
    seq.n_slots = seq.n_computed = n_prompt
    seq.n_output = 1
    return seq


def open_lockstep(n_blocks: int = 1000) -> tuple[Lockstep, BlockPool]:
    pool = BlockPool(n_blocks)
    return Lockstep(pool, BLOCK_TOKENS, MAX_MODEL_LEN), pool


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.lists(st.integers(1, 5), max_size=3))
def test_slots_of_many_steps_at_once_are_those_of_single_steps(prompts: Seq[int], leaps: Seq[int]) -> None:
    def blocks_after(leaps: Seq[int]) -> list[list[int]]:
        lockstep, _ = open_lockstep()
        seqs = [started(nth, n_prompt) for nth, n_prompt in enumerate(prompts)]
        for n_steps in leaps:
            assert lockstep.step(seqs) is not None
            lockstep.advance(n_steps)
        return [seq.blocks for seq in seqs]

    assert blocks_after(leaps) == blocks_after([1] * sum(leaps))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 30))
def test_a_step_repeats_as_often_as_single_steps_would_go_on(prompts: Seq[int], n_blocks: int, at_most: int) -> None:
    lockstep, pool = open_lockstep(n_blocks)
    seqs = [started(nth, n_prompt) for nth, n_prompt in enumerate(prompts)]
    if lockstep.step(seqs) is None:
        return
    n_repeats = lockstep.n_repeats(at_most)
    assert 1 <= n_repeats <= at_most
    for _ in range(n_repeats - 1):
        lockstep.advance(1)
        assert lockstep.step(seqs) is not None
    lockstep.advance(1)
    if n_repeats < at_most:
        assert lockstep.step(seqs) is None
    assert pool.n_free >= 0


def test_the_limit_of_one_that_has_left_holds_nobody_back() -> None:
    lockstep, _ = open_lockstep()
    long, short = started(0, MAX_MODEL_LEN - 2), started(1, 1)
    lockstep.step([long, short])
    assert not lockstep.advance(1)
    lockstep.leave(long)
    for _ in range(5):
        assert lockstep.step([short]) == ()
        assert not lockstep.advance(1)


def test_all_need_a_look_when_one_is_too_long() -> None:
    lockstep, _ = open_lockstep()
    seqs = [started(0, MAX_MODEL_LEN - 1), started(1, 1)]
    lockstep.step(seqs)
    assert lockstep.advance(1)
    assert lockstep.step(seqs) is None
