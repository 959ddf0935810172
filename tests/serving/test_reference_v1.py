from __future__ import annotations

from hypothesis import given, settings

from policies.serving.scheduler import Step
from policies.serving.sequence import Sequence, State
from tests.serving.drive_v1 import CaseV1, DriveV1, cases
from tests.serving.reference_v1 import Log, Seen, play

MAX_CALLS = 120


def _id(seq: Sequence) -> int:
    return seq.request.request_id


def _seen(drive: DriveV1, step: Step) -> Seen:
    """What the reference notes, of ours."""
    scheduler, live = drive.scheduler, list(drive.scheduler.live())
    running = [seq for seq in live if seq.state is State.RUNNING]
    rows = scheduler.rows_of(step)
    began = {prefill.seq for prefill in step.prefills if prefill.seq.n_computed == 0}
    return Seen(
        log=Log(
            rows=[(_id(seq), n) for seq, n in rows],
            admitted=[(_id(seq), seq.n_cached or 0) for seq, _ in rows if seq in began],
            preempted=[_id(seq) for seq, _ in step.preempted],
        ),
        free=drive.pool.free_order(),
        n_keys=drive.pool.n_cached,
        lists={_id(seq): scheduler.tables.groups_of(seq) for seq in running},
        waiting=[_id(seq) for seq in live if seq.state is State.WAITING],
        running=[_id(seq) for seq in running],
    )


@given(cases())
@settings(max_examples=300)
def test_every_step_is_the_one_that_the_specification_says(case: CaseV1) -> None:
    seen: list[Seen] = []
    drive = DriveV1(case, watch=lambda step: seen.append(_seen(drive, step)))
    for _ in drive.run(max_composed=MAX_CALLS):
        pass
    for ours, theirs in zip(seen, play(case, MAX_CALLS), strict=True):
        assert ours == theirs
