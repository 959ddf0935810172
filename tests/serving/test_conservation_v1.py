from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.serving.sequence import State
from policies.serving.vllm_v1.pool import PLACEHOLDER
from policies.view import Ask
from tests.serving.drive_v1 import CaseV1, DriveV1, cases


def check_blocks(drive: DriveV1) -> None:
    """Every block is free or in a block table, and the pool counts them so."""
    pool, tables = drive.pool, drive.scheduler.tables
    held = Counter(block for seq in drive.seqs.values() for blocks in tables.groups_of(seq) for block in blocks)
    del held[PLACEHOLDER]
    free = pool.free_order()
    assert len(free) + len(held) + 1 == pool.n_blocks
    assert not held.keys() & set(free)
    assert len(set(free)) == len(free) == pool.n_free
    assert pool.n_empty == sum(not pool.is_cached(block) for block in free)
    assert pool.n_lent_used == sum(pool.range_of(block) is not None for block in held)
    assert pool.n_base_used + pool.n_base_free == pool.n_base
    for seq in drive.seqs.values():
        assert [seq.blocks] == tables.groups_of(seq)[:1] or not (seq.blocks or tables.groups_of(seq))


def check_requests(drive: DriveV1) -> None:
    """Every request that has arrived is in exactly one place."""
    scheduler = drive.scheduler
    live = [seq.request.request_id for seq in scheduler.live()]
    ended = [seq for seq in drive.seqs.values() if seq.state is State.FINISHED]
    assert len(set(live)) == len(live) == scheduler.n_waiting + scheduler.n_running == scheduler.n_live
    assert not set(live) & {seq.request.request_id for seq in ended}
    assert sorted(seq.request.request_id for seq in drive.gone) == sorted(seq.request.request_id for seq in ended)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_blocks_and_requests_are_conserved_after_every_step(case: CaseV1, random: Random) -> None:
    drive = DriveV1(case)
    for _ in drive.run(lambda most: random.randint(1, most)):
        check_blocks(drive)
        check_requests(drive)
    if not drive.scheduler.n_live and len(drive.gone) == len(drive.seqs):
        for seq in drive.gone:
            assert drive.n_left(seq) == 0 or seq.n_tokens == case.settings.max_model_len
        assert drive.pool.n_used == 1


class Lender:
    """Lends ranges of random sizes when asked, some of the time."""

    def __init__(self, random: Random) -> None:
        self.drive: DriveV1 | None = None
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
        live = [seq.request.request_id for seq in scheduler.live() if seq.state is State.RUNNING]
        if live and self._random.random() < 0.1:
            scheduler.preempt(self._random.sample(live, 1))


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_blocks_and_requests_are_conserved_while_ranges_come_and_go(case: CaseV1, random: Random) -> None:
    lender = Lender(random)
    drive = lender.drive = DriveV1(case, lender.relieve)
    for _ in drive.run():
        lender.meddle()
        check_blocks(drive)
        check_requests(drive)
