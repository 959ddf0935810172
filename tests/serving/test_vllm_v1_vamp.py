"""vLLM's V1 scheduler where a policy is asked before cached blocks are evicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.serving.sequence import State
from policies.serving.vllm_v1.lately import HIT_WINDOW_STEPS, Lately
from policies.serving.vllm_v1.pool import FreeQueuePool
from policies.shortage import Shortage
from policies.view import Ask
from tests.serving.drive_v1 import CaseV1, DriveV1, case, cases, request, small, snapshot
from tests.serving.test_conservation_v1 import check_blocks, check_requests

BLOCK_BYTES = 1000

Answer = Callable[[DriveV1, Shortage], int]


class Controller:
    """Answers the question before evictions; ``shortages`` keeps what it was asked, ``granted`` what that gave."""

    def __init__(self, served: CaseV1, answer: Answer) -> None:
        asking = replace(served, settings=replace(served.settings, asks_before_evicting=True))
        self.shortages: list[Shortage] = []
        self.granted: list[tuple[Shortage, int]] = []
        self._answer = answer
        self.drive = DriveV1(asking, self.relieve)

    def relieve(self, n_blocks: int, ask: Ask) -> int:
        if ask is not Ask.EVICTION:
            return 0
        short = self.drive.scheduler.shortage(n_blocks, BLOCK_BYTES)
        self.shortages.append(short)
        before = self.drive.pool.n_empty
        self._answer(self.drive, short)
        n_granted = max(0, self.drive.pool.n_empty - before)
        if n_granted:
            self.granted.append((short, n_granted))
        return n_granted


def evict(drive: DriveV1, short: Shortage) -> int:
    drive.pool.evict(victim.block for victim in short.victims)
    return len(short.victims)


def refuse(drive: DriveV1, short: Shortage) -> int:
    del drive, short
    return 0


def lend(drive: DriveV1, short: Shortage) -> int:
    first = 1000 + drive.pool.n_blocks
    drive.pool.add_range((0, first), first, short.n_blocks)
    return short.n_blocks


def preempt(drive: DriveV1, short: Shortage) -> int:
    drive.scheduler.preempt([each.request_id for each in short.preemptable])
    return 0


def _two_turns(n_blocks: int) -> CaseV1:
    """Request 0 leaves two cached blocks of four tokens; request 1 needs four blocks, of which it hits none."""
    requests = (request(0, (("a", 9),), 1), request(1, (("b", 15),), 1, arrival_ns=10**12))
    return CaseV1(settings=small(prefix_caching=True), n_blocks=n_blocks, requests=requests, n_outputs={0: 1, 1: 1})


def test_nobody_is_asked_while_there_are_blocks_without_content() -> None:
    controller = Controller(_two_turns(7), evict)  # two cached, four empty
    list(controller.drive.run())
    assert not controller.shortages


def test_the_gap_is_what_blocks_without_content_do_not_cover() -> None:
    controller = Controller(_two_turns(6), evict)
    list(controller.drive.run())
    (short,) = controller.shortages
    assert (short.n_blocks, len(short.victims), short.block_tokens, short.block_bytes) == (1, 1, 4, BLOCK_BYTES)
    assert short.n_steps_left is None
    assert controller.drive.pool.n_cached == 1 + 3


def test_with_memory_lent_instead_every_cached_block_survives() -> None:
    controller = Controller(_two_turns(6), lend)
    list(controller.drive.run())
    assert controller.drive.pool.n_cached == 2 + 3


def test_without_an_answer_blocks_are_evicted_as_ever() -> None:
    controller = Controller(_two_turns(6), refuse)
    list(controller.drive.run())
    assert len(controller.drive.gone) == 2
    assert controller.drive.pool.n_cached == 1 + 3


def test_what_a_request_hits_is_not_evicted_for_it() -> None:
    requests = (
        request(0, (("a", 8), ("x", 1)), 1),
        request(1, (("b", 4), ("x", 1)), 1, arrival_ns=10**12),
        request(2, (("a", 8), ("c", 8)), 1, arrival_ns=2 * 10**12),
    )
    served = CaseV1(settings=small(prefix_caching=True), n_blocks=5, requests=requests, n_outputs={0: 1, 1: 1, 2: 1})
    controller = Controller(served, evict)
    list(controller.drive.run())
    (short,) = controller.shortages  # two hits and one cached block of request 1 are there, one is empty
    assert short.n_blocks == len(short.victims) == 1
    assert controller.drive.seqs[2].n_hit_tokens == 8


def test_requests_that_the_step_has_not_come_to_may_be_preempted_the_newest_first() -> None:
    controller = Controller(case(small(prefix_caching=True), 6, (4, 9), (6, 9), (5, 9)), preempt)
    steps = controller.drive.run()
    next(steps)
    assert not controller.shortages
    step, _ = next(steps)
    (short,) = controller.shortages  # every block is in use when request 0 begins another
    assert [each.n_partial_tokens for each in short.preemptable] == [1]
    assert [seq.request.request_id for seq, _ in step.preempted] == [2]
    assert controller.drive.seqs[2].state is State.WAITING


def test_nobody_else_is_preempted_while_a_step_is_composed() -> None:
    def first(drive: DriveV1, short: Shortage) -> int:
        del short
        with pytest.raises(ValueError, match="a step is being composed"):
            drive.scheduler.preempt([0])
        return 0

    controller = Controller(case(small(prefix_caching=True), 6, (4, 9), (6, 9), (5, 9)), first)
    steps = controller.drive.run()
    for _ in range(3):
        next(steps)
    assert controller.shortages


def test_hits_and_waits_are_measured_over_the_last_steps() -> None:
    lately = Lately()
    assert (lately.hit_rate(0), lately.wait_ns) == (0.0, None)
    lately.looked_up(1, 10, 40)
    lately.looked_up(2, 30, 40)
    assert lately.hit_rate(2) == 0.5
    assert lately.hit_rate(1 + HIT_WINDOW_STEPS) == 0.75
    assert lately.hit_rate(2 + HIT_WINDOW_STEPS) == 0.0
    lately.waited(1000)
    lately.waited(2000)
    assert lately.wait_ns == 1200


def test_blocks_without_content_are_taken_before_cached_ones() -> None:
    pool = FreeQueuePool(6, spares_cached=True)
    blocks = pool.take(3)
    pool.publish(blocks[0], (0, (None, "a", 4)))
    pool.release(blocks)
    assert pool.free_order() == [4, 5, 2, 3, 1]
    pool.add_range((0, 0), 10, 2)
    assert pool.free_order() == [4, 5, 2, 3, 10, 11, 1]
    pool.evict([1])
    assert (pool.n_empty, pool.n_free, pool.n_cached) == (7, 7, 0)


ANSWERS = st.sampled_from([evict, refuse, lend, preempt])


def _takes_no_cached_block(pool: FreeQueuePool) -> None:
    """From now on the pool refuses to take a block with content."""
    take = pool.take

    def checked(n_blocks: int) -> list[int]:
        assert n_blocks <= pool.n_empty
        return take(n_blocks)

    pool.take = checked


@given(cases())
@settings(max_examples=150)
def test_no_cached_block_is_taken_without_a_question(served: CaseV1) -> None:
    controller = Controller(served, evict)
    _takes_no_cached_block(controller.drive.pool)
    list(controller.drive.run())


@given(cases(), ANSWERS)
@settings(max_examples=150)
def test_blocks_and_requests_are_conserved_whatever_the_answer(served: CaseV1, answer: Answer) -> None:
    controller = Controller(served, answer)
    for _ in controller.drive.run():
        check_blocks(controller.drive)
        check_requests(controller.drive)


@given(cases(), st.sampled_from([evict, lend]), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_leaps_and_single_steps_are_granted_the_same(served: CaseV1, answer: Answer, random: Random) -> None:
    alone, leaping = Controller(served, answer), Controller(served, answer)
    for _ in alone.drive.run():
        pass
    for _ in leaping.drive.run(lambda most: random.randint(1, most)):
        pass
    if not alone.drive.scheduler.n_live:
        assert leaping.granted == alone.granted
        assert snapshot(leaping.drive) == snapshot(alone.drive)
