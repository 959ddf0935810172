from __future__ import annotations

import pytest

from policies.serving.scheduler import Step
from policies.serving.sequence import State
from policies.serving.vllm_v1.tables import NO_HITS
from policies.view import Ask
from tests.serving.drive import STEP_NS, no_relief
from tests.serving.drive_v1 import CaseV1, DriveV1, case, request, small


def _composed(drive: DriveV1) -> list[list[tuple[int, int]]]:
    """Serve to the end: who got how many tokens in each composed step, in the order of scheduling."""
    rows: list[list[tuple[int, int]]] = []

    def watch(step: Step) -> None:
        rows.append([(seq.request.request_id, n) for seq, n in drive.scheduler.rows_of(step)])

    drive.watch = watch
    list(drive.run())
    return rows


def test_decodes_come_before_prompts_and_share_their_budget() -> None:
    rows = _composed(DriveV1(case(small(max_num_batched_tokens=6), 20, (4, 3), (5, 1))))
    assert rows == [[(0, 4), (1, 2)], [(0, 1), (1, 3)], [(0, 1)]]


def test_a_long_prompt_gets_no_more_than_its_share() -> None:
    rows = _composed(DriveV1(case(small(long_prefill_tokens=3), 20, (7, 1), (2, 1))))
    assert rows == [[(0, 3), (1, 2)], [(0, 3)], [(0, 1)]]


def test_without_chunks_a_prompt_waits_until_it_fits_whole() -> None:
    settings = small(chunked_prefill=False, max_num_batched_tokens=8, max_model_len=8)
    rows = _composed(DriveV1(case(settings, 20, (5, 1), (4, 1), (1, 1))))
    assert rows == [[(0, 5)], [(1, 4), (2, 1)]]


def test_victims_come_from_the_end_and_wait_in_front() -> None:
    drive = DriveV1(case(small(), 4, (4, 5), (4, 5), (4, 5)))
    steps = drive.run()
    next(steps)
    step, _ = next(steps)  # three blocks are used: request 0 takes the last one's, request 1 that of its own
    assert [seq.request.request_id for seq, _ in step.preempted] == [2, 1]
    assert [seq.request.request_id for seq in drive.scheduler.live()] == [1, 2, 0]
    assert [drive.seqs[i].n_preemptions for i in range(3)] == [0, 1, 1]


def test_no_admission_in_a_step_that_preempted() -> None:
    drive = DriveV1(case(small(max_num_seqs=2), 4, (4, 9), (8, 9), (1, 1)))
    steps = drive.run()
    next(steps)
    step, _ = next(steps)
    assert [seq.request.request_id for seq, _ in step.preempted] == [1]
    assert [seq.request.request_id for seq, _ in step.rows] == [0]


def test_a_first_piece_that_fits_is_admitted_unless_the_whole_prompt_is_reserved() -> None:
    sizes = ((4, 9), (40, 1))
    for reserves, n_admitted in ((False, 2), (True, 1)):
        settings = small(max_num_batched_tokens=8, reserve_full_isl=reserves)
        assert len(_composed(DriveV1(case(settings, 8, *sizes)))[0]) == n_admitted


def test_a_request_hits_what_another_was_given_in_the_same_step() -> None:
    prompt = (("a", 9),)
    requests = (request(0, prompt, 1), request(1, prompt, 1))
    drive = DriveV1(CaseV1(settings=small(prefix_caching=True), n_blocks=20, requests=requests, n_outputs={0: 1, 1: 1}))
    assert _composed(drive) == [[(0, 9), (1, 1)]]
    assert drive.seqs[1].n_hit_tokens == 8


def test_the_last_block_of_a_prompt_of_whole_blocks_is_computed_again() -> None:
    requests = (request(0, (("a", 8),), 1), request(1, (("a", 8),), 1, arrival_ns=STEP_NS))
    drive = DriveV1(CaseV1(settings=small(prefix_caching=True), n_blocks=20, requests=requests, n_outputs={0: 1, 1: 1}))
    assert _composed(drive) == [[(0, 8)], [(1, 4)]]


def test_what_a_request_has_answered_can_be_hit() -> None:
    requests = (
        request(0, (("a", 4),), 5),
        request(1, (("a", 4), ("out0", 4), ("b", 1)), 1, arrival_ns=100 * STEP_NS),
    )
    drive = DriveV1(CaseV1(settings=small(prefix_caching=True), n_blocks=20, requests=requests, n_outputs={0: 5, 1: 1}))
    list(drive.run())
    assert drive.seqs[1].n_hit_tokens == 8


def test_a_hybrid_prompt_is_cut_at_its_last_block_boundary() -> None:
    settings = small(prefix_caching=True, n_state_groups=2)
    assert _composed(DriveV1(case(settings, 20, (10, 1)))) == [[(0, 8)], [(0, 2)]]


def test_a_hybrid_prompt_hits_only_where_every_group_kept_its_state() -> None:
    prompt, longer = (("a", 8),), (("a", 8), ("b", 2))
    requests = (request(0, longer, 1), request(1, longer, 1, arrival_ns=9 * STEP_NS), request(2, prompt, 1))
    settings = small(prefix_caching=True, n_state_groups=2)
    drive = DriveV1(CaseV1(settings=settings, n_blocks=40, requests=requests[:2], n_outputs={0: 1, 1: 1}))
    list(drive.run())
    assert drive.seqs[1].n_hit_tokens == 8
    # Only the state at token 8 was kept, and that is the end of this prompt, whose last token is always computed.
    other = CaseV1(settings=settings, n_blocks=40, requests=(requests[2], requests[1]), n_outputs={1: 1, 2: 1})
    assert _composed(DriveV1(other)) == [[(2, 8)], [(1, 2)]]


def test_asynchronously_a_request_that_ends_early_runs_once_more_for_nothing() -> None:
    settings = small(async_scheduling=True)
    early = CaseV1(settings=settings, n_blocks=20, requests=(request(0, (("a", 4),), 9),), n_outputs={0: 2})
    assert _composed(DriveV1(early)) == [[(0, 4)], [(0, 1)], [(0, 1)]]
    declared = CaseV1(settings=settings, n_blocks=20, requests=(request(0, (("a", 4),), 2),), n_outputs={0: 2})
    assert _composed(DriveV1(declared)) == [[(0, 4)], [(0, 1)], []]


def test_asynchronously_a_preempted_request_can_end_while_it_waits() -> None:
    # Usable are 2 blocks. Request 1 samples its last token in the step during which request 0 needs the second block.
    settings = small(async_scheduling=True)
    requests = (request(0, (("a", 3),), 9), request(1, (("b", 3),), 2))
    drive = DriveV1(CaseV1(settings=settings, n_blocks=3, requests=requests, n_outputs={0: 9, 1: 2}))
    list(drive.run())
    ended = drive.seqs[1]
    assert (ended.state, ended.n_preemptions, ended.n_output, ended.blocks) == (State.FINISHED, 1, 2, [])


def test_relief_is_asked_before_a_victim_is_picked() -> None:
    asked: list[tuple[int, Ask]] = []

    def relieve(n_missing: int, ask: Ask) -> int:
        asked.append((n_missing, ask))
        if ask is Ask.RUNNING_SHORT:
            drive.pool.add_range((1, len(asked)), 100 * len(asked), n_missing)
            return n_missing
        return 0

    drive = DriveV1(case(small(), 3, (4, 3), (4, 3), (8, 1)), relieve)
    next(drive.run())
    step = drive.scheduler.compose(drive.now_ns, relieve)
    assert not step.preempted
    assert asked == [(2, Ask.WAITING_SHORT), (1, Ask.RUNNING_SHORT), (1, Ask.RUNNING_SHORT), (2, Ask.WAITING_SHORT)]


def test_preempted_from_outside_a_request_resumes_behind_its_late_token() -> None:
    drive = DriveV1(case(small(async_scheduling=True), 20, (4, 6), (4, 6)))
    steps = drive.run()
    next(steps)
    assert [seq.request.request_id for seq in drive.scheduler.preempt([1])] == [1]
    step = drive.scheduler.compose(drive.now_ns, no_relief)
    assert [seq.request.request_id for seq, _ in step.rows] == [0]
    assert drive.scheduler.n_repeats(step, 100) == 1  # the other one begins again as soon as its token is there
    drive = DriveV1(case(small(async_scheduling=True), 20, (4, 6), (4, 6)))
    steps = drive.run()
    next(steps)
    assert [seq.request.request_id for seq in drive.scheduler.preempt([1, 0])] == [0, 1]
    list(steps)
    assert [drive.seqs[i].n_output for i in range(2)] == [6, 6]
    assert drive.pool.n_used == 1


def test_preempting_while_a_step_is_composed_is_refused() -> None:
    def relieve(n_missing: int, ask: Ask) -> int:
        del n_missing, ask
        drive.scheduler.preempt([0])
        return 0

    drive = DriveV1(case(small(), 3, (4, 3), (8, 3)), relieve)
    with pytest.raises(ValueError, match="a step is being composed"):
        list(drive.run())


def test_the_blocks_that_only_eviction_gives_are_counted() -> None:
    requests = (request(0, (("a", 8),), 1), request(1, (("b", 8),), 1, arrival_ns=9 * STEP_NS))
    drive = DriveV1(CaseV1(settings=small(prefix_caching=True), n_blocks=5, requests=requests, n_outputs={0: 1, 1: 1}))
    next(drive.run())
    # 2 of the 4 usable blocks are cached and free, 2 are empty.
    assert drive.scheduler.tables.n_evictions(drive.seqs[1], 8, NO_HITS) == 0
    assert drive.scheduler.tables.n_evictions(drive.seqs[1], 12, NO_HITS) == 1


def test_what_a_preemption_loses_for_sure_is_the_last_block_unless_it_is_full() -> None:
    drive = DriveV1(case(small(), 20, (6, 9)))
    next(drive.run())
    assert drive.scheduler.tables.n_partial(drive.seqs[0]) == 2
    drive.scheduler.compose(drive.now_ns, no_relief)
    assert drive.scheduler.tables.n_partial(drive.seqs[0]) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_tokens": 0}, "block_tokens=0 must be at least 1"),
        ({"n_state_groups": -1}, "n_state_groups=-1 must not be negative"),
        (
            {"chunked_prefill": False, "max_num_batched_tokens": 9},
            "max_num_batched_tokens=9 is below max_model_len=1000",
        ),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**changes)
