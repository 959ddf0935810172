from __future__ import annotations

from itertools import islice

from hypothesis import given, settings

from policies.serving.scheduler import Step
from policies.serving.sequence import Sequence
from tests.serving.drive import Case, Drive, cases
from tests.serving.reference_v0 import Log, Seen, play

MAX_STEPS = 120


def _id(seq: Sequence) -> int:
    return seq.request.request_id


def _log(step: Step) -> Log:
    return Log(
        rows=[(_id(seq), n) for seq, n in step.rows],
        prefills=[(_id(each.seq), each.n_tokens, each.n_cached, each.samples) for each in step.prefills],
        preempted=[_id(seq) for seq, _ in step.preempted],
        ended=[_id(seq) for seq, _ in step.ended],
        dropped=[_id(seq) for seq in step.dropped],
        swapped_in=step.n_swapped_in,
        swapped_out=step.n_swapped_out,
    )


def _has_reference(case: Case) -> bool:
    return not (case.settings.prefix_caching and case.settings.preemption == "swap")


@given(cases().filter(_has_reference))
@settings(max_examples=200)
def test_every_step_is_the_one_that_the_specification_says(case: Case) -> None:
    seen: list[Seen] = []

    def watch(step: Step) -> None:
        live = list(drive.scheduler.live())
        tables = {_id(seq): list(seq.blocks) for seq in live if seq.blocks}
        empty = drive.pool.free_order()[: drive.pool.n_empty]
        seen.append(Seen(_log(step), empty, drive.pool.n_free, tables, [_id(seq) for seq in live]))

    drive = Drive(case, watch=watch)
    list(islice(drive.run(), MAX_STEPS))
    for ours, theirs in zip(seen, play(case, MAX_STEPS), strict=True):
        assert ours == theirs
