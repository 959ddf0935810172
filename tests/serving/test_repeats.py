from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.drive import STEP_NS, Case, Drive, case, cases, request, small, snapshot


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_n_repeats_of_a_step_leave_what_n_single_steps_leave(small_case: Case, random: Random) -> None:
    single, leaping = Drive(small_case), Drive(small_case)
    after_steps = {0: snapshot(single)}
    n_done = 0
    for _, n_steps in single.run():
        n_done += n_steps
        after_steps[n_done] = snapshot(single)

    n_done = 0
    for _, n_steps in leaping.run(lambda most: random.randint(1, most)):
        n_done += n_steps
        if n_done > max(after_steps):
            break  # both runs are cut somewhere, should they never end
        assert snapshot(leaping) == after_steps[n_done]


def test_a_step_with_room_repeats_until_the_last_free_block_but_one_is_taken() -> None:
    # 2 sequences of 4 tokens in blocks of 4: 2 blocks used, 10 - 2 = 8 free. Each decode step that begins a block
    # takes 2. Composing the first leaves 6; 5 may go, so 2 more pairs: at tokens 9 and 13. The pair at token 17
    # does not fit, so tokens 5..16 are 12 steps.
    drive = Drive(case(small(watermark=0.0), 10, (4, 100), (4, 100)))
    steps = drive.run(lambda most: most)
    assert next(steps)[1] == 1
    assert next(steps)[1] == 12
    assert drive.pool.n_free == 2


def test_steps_with_prefills_do_not_repeat() -> None:
    drive = Drive(case(small(), 10, (4, 100)))
    step, _ = next(drive.run())
    assert step.prefills
    assert drive.scheduler.n_repeats(step, 100) == 1
    assert drive.now_ns == STEP_NS


def test_a_leap_ends_where_a_sequence_outgrows_the_model() -> None:
    drive = Drive(case(small(max_model_len=20), 100, (4, 100)))
    ran = [n_steps for _, n_steps in drive.run(lambda most: most)]
    assert ran == [1, 16]  # the prompt gives token 5, so tokens 6..21 are left
    assert drive.seqs[0].n_tokens == 21


def test_no_leap_over_a_block_that_turns_out_to_be_cached() -> None:
    # Request 1 quotes what request 0 will answer: both prompts and that first token make the same first block. When
    # request 0 fills it, the second copy becomes free, and with it there are the 5 blocks that request 2 waits for.
    requests = (
        request(1, 9, prompt=(("a", 3), ("out0", 5), ("b", 1))),
        request(0, 3, prompt=(("a", 3),)),
        request(2, 20, prompt=(("c", 20),)),
    )
    settings = small(watermark=0.0, prefix_caching=True)
    drive = Drive(Case(settings=settings, n_blocks=8, requests=requests, n_outputs={0: 3, 1: 9, 2: 1}))
    steps = drive.run(lambda most: most)
    assert [[seq.request.request_id for seq, _ in next(steps)[0].rows] for _ in range(3)] == [[1, 0], [1, 0], [2]]
