from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.drive import STEP_NS
from tests.serving.drive_v1 import CaseV1, DriveV1, case, cases, request, small, snapshot


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_n_repeats_of_a_step_leave_what_n_single_steps_leave(small_case: CaseV1, random: Random) -> None:
    single, leaping = DriveV1(small_case), DriveV1(small_case)
    n_done, after_steps = 0, {0: snapshot(single)}
    for _, n_steps in single.run():
        n_done += n_steps
        after_steps[n_done] = snapshot(single)

    n_done = 0
    for _, n_steps in leaping.run(lambda most: random.randint(1, most)):
        n_done += n_steps
        if n_done > max(after_steps):
            break  # both runs are cut somewhere, should they never end
        assert snapshot(leaping) == after_steps[n_done]


def test_a_step_repeats_until_the_last_free_block_is_taken() -> None:
    # 2 requests of 4 tokens in blocks of 4, 11 - 1 usable: the step that gives slot 5 leaves 10 - 4 = 6 blocks free,
    # enough for slots 9, 13 and 17. Slot 21 finds none, so slots 5..20 are 16 steps.
    drive = DriveV1(case(small(), 11, (4, 100), (4, 100)))
    steps = drive.run(lambda most: most)
    assert next(steps)[1] == 1
    assert next(steps)[1] == 16
    assert drive.pool.n_free == 0


def test_asynchronously_the_last_repetition_is_reported_behind_the_next_step() -> None:
    drive = DriveV1(case(small(async_scheduling=True), 20, (4, 9)))
    # The prompt gives token 1. The step that is composed beside it repeats for the 8 that are left, as 7 and 1: when
    # the seven have ended, the next step would be composed beside the last.
    assert [n_steps for _, n_steps in drive.run(lambda most: most)] == [1, 7, 1]


def test_a_hybrid_model_repeats_within_a_block_only() -> None:
    drive = DriveV1(case(small(prefix_caching=True, n_state_groups=1, block_tokens=16), 40, (16, 100)))
    # Slot 17 begins a block. The step with slot 18 releases the state before it, those up to slot 32 nothing: 15 steps.
    assert [n_steps for _, n_steps in drive.run(lambda most: most)][:5] == [1, 1, 15, 1, 15]


def test_no_leap_over_a_block_that_the_waiting_request_quotes() -> None:
    # Request 0 holds 2 of 3 usable blocks when request 1 arrives, which quotes its answer: it needs 2 more blocks
    # until the second one is full and published, then only 1, which is there.
    quoting = request(1, (("a", 4), ("out0", 4), ("b", 1)), arrival_ns=5 * STEP_NS // 2)
    requests = (request(0, (("a", 4),)), quoting)
    drive = DriveV1(CaseV1(settings=small(prefix_caching=True), n_blocks=4, requests=requests, n_outputs={0: 9, 1: 1}))
    ran = [([seq.request.request_id for seq, _ in step.rows], n) for step, n in drive.run(lambda most: most)]
    assert [(sorted(ids), n) for ids, n in ran[:4]] == [([0], 1), ([0], 2), ([0], 1), ([0, 1], 1)]


def test_steps_with_prefills_do_not_repeat() -> None:
    drive = DriveV1(case(small(), 10, (4, 100)))
    step, _ = next(drive.run())
    assert step.prefills
    assert drive.scheduler.n_repeats(step, 100) == 1
