"""Ways of sharing a GPU as the configuration names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf.carry_out import open_books
from conf.compare import describe
from conf.worlds import open_world
from policies.backend import Batch, StepReport
from policies.serving.tenancy import SHARINGS, Mig
from policies.types import Work
from tests.conf.test_build import CONF, built

DECODE = Work(0, 0, 0, 16, 16 * 500, 16)
PROMPT = Work(512, 1, 512 * 513 // 2, 0, 0, 1)


def test_every_way_of_sharing_can_be_chosen_by_its_name() -> None:
    files = {path.stem for path in Path(CONF / "tenancy").glob("*.yaml")}
    assert files == SHARINGS.keys()
    for name, sharing in SHARINGS.items():
        assert {type(run.tenancy) for run in built(f"tenancy={name}").runs} == {sharing}


@pytest.mark.parametrize("kind", sorted({*SHARINGS} - {"temporal"}))
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("backend=memfd", "backend.world=memfd runs models in turns only; run it with python -m sim"),
        ("backend=cuda", "backend.world=cuda runs models in turns only"),
        ("compute=table", "does not say what of the GPU a step keeps busy"),
        ("hardware.link.prefill_copy_slowdown=0.1", "a step with prompts is slowed like any other"),
        ("serving.share_idle_kv=true", "set serving.share_idle_kv=false"),
        ("serving=vllm_v1", "set serving.async_scheduling=false"),
        ("compare=[pie]", "keeps KV cache in host memory"),
    ],
)
def test_what_works_in_turns_only_is_refused_in_one_line(kind: str, change: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"tenancy.kind={kind}: .*{says}.*; or take tenancy=temporal"):
        built(f"tenancy={kind}", change, "parallel.jobs=1")


def test_shares_are_a_number_a_model_and_no_more_than_the_device() -> None:
    with pytest.raises(ValueError, match="shares has 2 numbers for 3 models"):
        built("tenancy=mig", "tenancy.shares=[0.5,0.5]")
    with pytest.raises(ValueError, match="add up to more than the device"):
        built("tenancy=mig", "tenancy.shares=[0.5,0.5,0.5]")
    with pytest.raises(ValueError, match="must not be negative"):
        built("tenancy=mps", "tenancy.interference=-1")


def test_side_by_side_models_may_borrow_from_themselves_alone() -> None:
    for name in SHARINGS:
        _, lanes = open_books(built(f"tenancy={name}").runs[0])
        for lane in lanes:
            lends = {lender for lender, n_blocks in enumerate(lane.layout.blocks_per_home) if n_blocks}
            assert lends == ({lane.index} if name != "temporal" else {0, 1, 2})


def facts(report: StepReport) -> tuple[object, ...]:
    """All that is told of its steps."""
    times = report.ends_ns, report.compute_ns, report.stall_ns, report.rest_ns
    return report.lane, report.start_ns, *times, report.swap_ns, report.remap_ns


@pytest.mark.parametrize("work", [DECODE, PROMPT])
def test_a_slice_of_mig_is_as_fast_as_a_machine_of_that_share_whatever_the_others_do(work: Work) -> None:
    run = built("tenancy=mig").runs[0]
    with open_world(run, *open_books(run)) as backend:
        for lane in range(3):
            backend.submit(lane, Batch(work), 1, 2**60)
        reports = {report.lane: report for _ in range(3) if (report := backend.advance(None)) is not None}
    assert isinstance(run.tenancy, Mig)
    for lane, share in enumerate((0.35, 0.35, 0.20)):
        hardware = run.settings.hardware
        part = replace(
            hardware,
            hbm_bytes_per_s=round(hardware.hbm_bytes_per_s * share),
            flops_per_s=round(hardware.flops_per_s * share),
        )
        alone = built("tenancy=temporal").runs[0]
        alone = replace(
            alone,
            settings=replace(alone.settings, hardware=part),
            hardware=replace(alone.hardware, hbm_bytes_per_s=part.hbm_bytes_per_s),
        )
        with open_world(alone, *open_books(alone)) as backend:
            backend.submit(lane, Batch(work), 1, 2**60)
            report = backend.advance(None)
        assert report is not None
        assert facts(report) == facts(reports[lane])


def test_under_mps_a_step_is_as_fast_alone_as_in_turns_and_two_that_decode_slow_each_other() -> None:
    ends_ns: dict[tuple[str, int], int] = {}
    for name in ("mps", "temporal"):
        for n_lanes in (1, 2)[: 2 if name == "mps" else 1]:
            run = built(f"tenancy={name}", "tenancy.interference=0" if name == "mps" else "seed=0").runs[0]
            with open_world(run, *open_books(run)) as backend:
                for lane in range(n_lanes):
                    backend.submit(lane, Batch(DECODE), 1, 2**60)
                report = backend.advance(None)
                assert report is not None
                ends_ns[name, n_lanes] = report.ends_ns[-1]
    assert ends_ns["mps", 1] == ends_ns["temporal", 1]
    assert ends_ns["mps", 1] < ends_ns["mps", 2] < 2 * ends_ns["mps", 1]  # launches and host overlap


def test_it_is_said_that_c1_cannot_be_divided_into_real_slices() -> None:
    slices = "OPT-13b 48 GB, Llama-2-13b 48 GB, Llama-3-8b 24 GB: more than the 96 GB of a GH200"
    assert slices in describe(built("tenancy=mig"))
    assert "slices" not in describe(built("tenancy=mps"))
    assert "slices" not in describe(built("tenancy=mig", "hardware=h200_sxm"))
    assert "OPT-30b 96 GB, OPT-6.7b 24 GB: more" in describe(built("tenancy=mig", "mix=c2"))
