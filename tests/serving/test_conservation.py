from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.serving.sequence import State
from policies.view import Ask
from tests.serving.drive import Case, Drive, cases


def check_blocks(drive: Drive) -> None:
    """Every block is free or in a block table, and the pool counts them so."""
    pool = drive.pool
    held = Counter(block for seq in drive.seqs.values() for block in seq.blocks)
    free = pool.free_order()
    assert len(free) + len(held) == pool.n_blocks
    assert not held.keys() & set(free)
    assert len(set(free)) == len(free)
    assert pool.n_used == len(held)
    assert pool.n_lent_used == sum(pool.range_of(block) is not None for block in held)
    assert pool.n_base_used + pool.n_base_free == pool.n_base
    if pool.cache is None:
        assert set(held.values()) <= {1}


def check_requests(drive: Drive) -> None:
    """Every request that has arrived is in exactly one place."""
    live = [seq.request.request_id for seq in drive.scheduler.live()]
    ended = [seq for seq in drive.seqs.values() if seq.state in (State.FINISHED, State.DROPPED)]
    scheduler = drive.scheduler
    assert len(set(live)) == len(live) == scheduler.n_waiting + scheduler.n_running + scheduler.n_swapped
    assert not set(live) & {seq.request.request_id for seq in ended}
    arrived = [seq for seq in drive.seqs.values() if seq.request.arrival_ns <= drive.now_ns]
    assert len(live) + len(ended) <= len(arrived)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_blocks_and_requests_are_conserved_after_every_step(case: Case, random: Random) -> None:
    drive = Drive(case)
    for _ in drive.run(lambda most: random.randint(1, most)):
        check_blocks(drive)
        check_requests(drive)
    if not list(drive.scheduler.live()):
        assert sorted(seq.request.request_id for seq in drive.gone) == sorted(drive.seqs)
        for seq in drive.gone:
            is_cut = seq.n_tokens > case.settings.max_model_len
            assert seq.state is State.DROPPED or is_cut or drive.n_left(seq) == 0
        assert not any(seq.blocks for seq in drive.seqs.values())
        assert drive.pool.n_used == 0


class Lender:
    """Lends ranges of random sizes when asked, some of the time."""

    def __init__(self, random: Random) -> None:
        self.drive: Drive | None = None
        self.ranges: list[tuple[int, int]] = []
        self._random = random
        self._next = 1000

    def relieve(self, n_missing: int, ask: Ask) -> int:
        assert self.drive is not None
        assert n_missing > 0
        assert ask in (Ask.RUNNING_SHORT, Ask.WAITING_SHORT)
        if self._random.random() < 0.5:
            return 0
        n_blocks = self._random.randint(1, 6)
        range_id = (1, self._next)
        self.drive.pool.add_range(range_id, self._next, n_blocks)
        self.ranges.append(range_id)
        self._next += n_blocks + self._random.randint(0, 3)
        return n_blocks

    def meddle(self) -> None:
        """Between steps: take empty ranges back, empty others, preempt somebody."""
        assert self.drive is not None
        pool, scheduler = self.drive.pool, self.drive.scheduler
        for range_id in list(self.ranges):
            if pool.n_referenced(range_id) <= pool.n_base_free and self._random.random() < 0.2:
                before = pool.n_referenced(range_id)
                assert len(scheduler.vacate(range_id)) == before
            if not pool.n_referenced(range_id) and self._random.random() < 0.3:
                pool.remove_range(range_id)
                self.ranges.remove(range_id)
        live = [seq.request.request_id for seq in scheduler.live() if seq.state is not State.WAITING]
        if live and self._random.random() < 0.1:
            scheduler.preempt(self._random.sample(live, 1))


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_blocks_and_requests_are_conserved_while_ranges_come_and_go(case: Case, random: Random) -> None:
    lender = Lender(random)
    drive = lender.drive = Drive(case, lender.relieve)
    for _ in drive.run(lambda most: random.randint(1, most)):
        lender.meddle()
        check_blocks(drive)
        check_requests(drive)
