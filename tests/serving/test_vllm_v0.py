"""Rules of vLLM 0.7.3, one at a time (reference/vllm_scheduler.md, sections 3 and 4)."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from policies.errors import HbmOverdrawn
from policies.serving.blocks import BlockPool
from policies.serving.scheduler import Step
from policies.serving.sequence import State
from policies.serving.vllm_v0.scheduler import V0Settings, VllmV0
from policies.view import Ask
from tests.serving.drive import Case, Drive, case, request, small


def _ids(step: Step) -> list[int]:
    return [seq.request.request_id for seq, _ in step.rows]


def _run(drive: Drive, n_steps: int) -> Step:
    """The last of so many composed steps."""
    return list(islice(drive.run(), n_steps))[-1][0]


def test_a_decode_needs_a_free_block_even_with_room_in_its_last() -> None:
    # 5 prompt tokens in two blocks of 4: three more tokens would fit, but no third block is there.
    drive = Drive(case(small(watermark=0.0), 2, (5, 3)))
    steps = [step for step, _ in drive.run(max_steps=4)]
    assert [len(step.rows) for step in steps] == [1, 0, 1, 0]
    assert [seq.request.request_id for seq, _ in steps[1].preempted] == [0]


def test_the_latest_is_preempted_and_waits_in_front() -> None:
    drive = Drive(case(small(watermark=0.0, max_num_seqs=3), 6, (7, 9), (7, 9), (7, 9), (7, 9)))
    step = _run(drive, 2)  # the prompts take all blocks, and a decode wants a free one
    assert _ids(step) == [0, 1]
    assert [(seq.request.request_id, mode) for seq, mode in step.preempted] == [(2, "recompute")]
    assert [seq.request.request_id for seq in drive.scheduler.live()] == [2, 3, 0, 1]


def test_admission_leaves_the_watermark_free() -> None:
    tight = case(small(watermark=0.25), 8, (20, 1), (5, 1))
    step = _run(Drive(tight), 1)
    assert _ids(step) == [0]  # 5 of 8 blocks; 2 more would leave 1, the watermark is 2
    assert _ids(_run(Drive(replace(tight, settings=small(watermark=0.1))), 1)) == [0, 1]


@pytest.mark.parametrize(("n_prompt", "limits"), [(33, {}), (30, {"max_num_batched_tokens": 29})])
def test_a_request_that_can_never_fit_is_dropped_and_the_next_goes_on(n_prompt: int, limits: dict[str, int]) -> None:
    drive = Drive(case(small(**limits), 8, (n_prompt, 5), (4, 1)))
    step = _run(drive, 1)
    assert _ids(step) == [1]
    assert [seq.request.request_id for seq in step.dropped] == [0]
    assert [seq.state for seq in drive.gone] == [State.FINISHED, State.DROPPED]


def test_lent_blocks_do_not_change_what_can_never_fit() -> None:
    drive = Drive(case(small(), 8, (33, 5)))
    drive.pool.add_range((1, 0), 100, 50)
    assert [seq.request.request_id for seq in _run(drive, 1).dropped] == [0]


def test_a_swapped_request_comes_back_before_a_waiting_one_starts() -> None:
    settings = small(watermark=0.0, preemption="swap", n_cpu_blocks=100, max_num_seqs=2)
    drive = Drive(case(settings, 5, (7, 4), (7, 9), (4, 1)))
    steps = [step for step, _ in drive.run()]
    preempted = next(i for i, step in enumerate(steps) if step.preempted)
    returned = next(i for i, step in enumerate(steps) if step.n_swapped_in)
    started = next(i for i, step in enumerate(steps) if 2 in _ids(step))
    assert preempted < returned < started
    assert steps[preempted].n_swapped_out == 2
    assert drive.seqs[1].n_recomputed == 0


def test_swapping_without_host_blocks_says_what_to_give() -> None:
    drive = Drive(case(small(watermark=0.0, preemption="swap", n_cpu_blocks=1), 4, (7, 9), (7, 9)))
    with pytest.raises(ValueError, match="n_cpu_blocks=1: request 1 needs 2"):
        list(drive.run())


def test_asynchronously_a_finished_request_runs_once_more_for_nothing() -> None:
    for is_async, n_rows in [(False, 3), (True, 4)]:
        drive = Drive(case(small(async_output=is_async), 10, (4, 3)))
        assert sum(len(step.rows) for step, _ in drive.run()) == n_rows
        assert drive.seqs[0].n_output == 3


def test_a_victim_that_has_finished_is_freed_instead_of_preempted() -> None:
    # Request 1 ends with its first token, which nobody has looked at when request 0 needs a block.
    drive = Drive(case(small(watermark=0.0, async_output=True), 3, (8, 9), (4, 1)))
    step = _run(drive, 2)
    assert [(seq.request.request_id, n_free) for seq, n_free in step.ended] == [(1, 1)]
    assert not step.preempted
    assert [seq.request.request_id for seq in drive.gone] == [1]


def test_a_victim_s_unseen_token_is_named() -> None:
    drive = Drive(case(small(watermark=0.0, async_output=True), 4, (8, 9), (8, 9)))
    step = _run(drive, 2)
    assert [seq.request.request_id for seq in step.unseen] == [1]


def test_chunked_prefill_runs_prompts_beside_decodes() -> None:
    settings = small(chunked_prefill=True, max_num_batched_tokens=8)
    drive = Drive(case(settings, 20, (6, 5), (10, 5)))
    steps = [[(seq.request.request_id, n) for seq, n in step.rows] for step, _ in drive.run(max_steps=3)]
    assert steps == [[(0, 6), (1, 2)], [(1, 7), (0, 1)], [(1, 1), (0, 1)]]


def test_cached_tokens_are_not_computed_again() -> None:
    pieces = (("system", 8), ("question", 2))
    requests = (request(0, 10, prompt=pieces), request(1, 10, arrival_ns=10_000, prompt=pieces))
    small_case = Case(settings=small(prefix_caching=True), n_blocks=20, requests=requests, n_outputs={0: 3, 1: 3})
    drive = Drive(small_case)
    prefills = [each for step, _ in drive.run() for each in step.prefills]
    assert [(each.n_tokens, each.n_cached) for each in prefills] == [(10, 0), (2, 8)]
    assert drive.seqs[1].n_hit_tokens == 8


def test_of_a_wholly_cached_prompt_one_token_is_computed() -> None:
    requests = tuple(request(i, 8, arrival_ns=10_000 * i, prompt=(("p", 8),)) for i in range(2))
    drive = Drive(Case(settings=small(prefix_caching=True), n_blocks=20, requests=requests, n_outputs={0: 3, 1: 3}))
    prefills = [each for step, _ in drive.run() for each in step.prefills]
    assert [(each.n_tokens, each.n_cached) for each in prefills] == [(8, 0), (1, 7)]


def test_tokens_computed_twice_are_counted() -> None:
    # Two prompts of 7 fill 4 blocks. Request 1 is preempted when request 0 decodes, admitted again with 8 tokens
    # (7 for the second time), preempted again, and admitted with 9 (8 for the second time).
    drive = Drive(case(small(watermark=0.0), 4, (7, 3), (7, 3)))
    list(drive.run())
    assert drive.seqs[1].n_preemptions == 2
    assert drive.seqs[1].n_recomputed == 7 + 8
    assert drive.seqs[0].n_recomputed == 0


def test_relief_is_asked_before_a_victim_is_picked() -> None:
    asked: list[tuple[int, Ask]] = []

    def relieve(n_missing: int, ask: Ask) -> int:
        asked.append((n_missing, ask))
        drive.pool.add_range((1, len(asked)), 100 * len(asked), 1)
        return 1

    drive = Drive(case(small(watermark=0.0), 4, (7, 3), (7, 3)), relieve)
    assert not any(step.preempted for step, _ in drive.run())
    assert asked == [(1, Ask.RUNNING_SHORT)] * len(asked)
    assert asked


def test_relief_for_the_head_of_the_queue_names_need_and_watermark() -> None:
    asked: list[tuple[int, Ask]] = []

    def relieve(n_missing: int, ask: Ask) -> int:
        asked.append((n_missing, ask))
        if len(asked) == 1:
            drive.pool.add_range((1, 0), 100, n_missing)
            return n_missing
        return 0

    drive = Drive(case(small(watermark=0.25), 8, (20, 1), (9, 1)), relieve)
    assert _ids(_run(drive, 1)) == [0, 1]
    assert asked == [(2, Ask.WAITING_SHORT)]  # 3 free; 3 for the prompt and 2 for the watermark


def test_no_relief_is_asked_for_a_head_that_the_budget_would_refuse() -> None:
    def relieve(n_missing: int, ask: Ask) -> int:
        raise AssertionError(f"asked for {n_missing}: {ask}")

    drive = Drive(case(small(watermark=0.0, max_num_seqs=1), 8, (20, 1), (20, 1)), relieve)
    assert _ids(_run(drive, 1)) == [0]


def test_forced_preemption_sends_requests_to_the_front_in_their_order() -> None:
    drive = Drive(case(small(max_num_seqs=3), 50, (4, 9), (4, 9), (4, 9), (4, 9)))
    _run(drive, 2)
    stopped = drive.scheduler.preempt([2, 0, 77])
    assert [seq.request.request_id for seq in stopped] == [0, 2]
    assert [seq.request.request_id for seq in drive.scheduler.live()] == [0, 2, 3, 1]
    assert all(not seq.blocks and seq.was_preempted for seq in stopped)
    list(drive.run())
    assert all(seq.state is State.FINISHED for seq in drive.seqs.values())


def test_forced_preemption_within_a_step_is_refused() -> None:
    def relieve(n_missing: int, ask: Ask) -> int:
        del n_missing, ask
        with pytest.raises(ValueError, match="a step is being composed"):
            drive.scheduler.preempt([0])
        return 0

    drive = Drive(case(small(watermark=0.0), 2, (5, 3)), relieve)
    list(drive.run(max_steps=4))


def test_a_vacated_range_holds_no_block_of_any_table() -> None:
    drive = Drive(case(small(watermark=0.0), 4, (8, 9), (8, 2)), lambda n_missing, _: _lend(drive, n_missing))
    for _ in drive.run():
        lent = [(block, seq) for seq in drive.seqs.values() for block in seq.blocks if block >= 100]
        if lent and drive.pool.n_base_free >= len(lent):
            moves = drive.scheduler.vacate((1, 0))
            assert sorted(old for old, _ in moves) == sorted(block for block, _ in lent)
            assert all(block < 4 for seq in drive.seqs.values() for block in seq.blocks)
            assert drive.pool.remove_range((1, 0)) == 0
            return
    raise AssertionError("the case never had room at home")


def _lend(drive: Drive, n_missing: int) -> int:
    if drive.pool.n_blocks > drive.pool.n_base:
        return 0
    drive.pool.add_range((1, 0), 100, n_missing + 2)
    return n_missing + 2


def test_vacating_without_room_changes_nothing() -> None:
    drive = Drive(case(small(watermark=0.0), 2, (8, 9)), lambda n_missing, _: _lend(drive, n_missing))
    _run(drive, 2)
    before = list(drive.seqs[0].blocks)
    with pytest.raises(HbmOverdrawn):
        drive.scheduler.vacate((1, 0))
    assert drive.seqs[0].blocks == before


def test_settings_and_pool_must_agree_on_caching() -> None:
    with pytest.raises(ValueError, match="prefix_caching=True"):
        VllmV0(small(prefix_caching=True), BlockPool(4))


@pytest.mark.parametrize(
    "change", [{"block_tokens": 0}, {"max_num_seqs": 0}, {"watermark": 1.0}, {"n_cpu_blocks": -1}, {"max_model_len": 0}]
)
def test_impossible_settings_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(V0Settings(max_num_batched_tokens=8, max_model_len=8), **change)
