"""Step times told apart from decisions, and the replays that a run is held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from conf import replays
from conf.again import again
from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out
from conf.replays import replay, steps_of
from conf.run import Run
from conf.validate import OUT_OF_TOLERANCE, main
from sim.validation.compare import METRICS, Tolerance, compared
from sim.validation.deviations import deviations
from sim.validation.judge import Judged, judge
from sim.validation.record import Record, record_of
from sim.validation.retimed import gaps, retimed, token_times
from sim.validation.same_decisions import Departed, Retold
from traces.results.folder import RunTables, read_run
from traces.results.metrics import Figures, summarise
from traces.workload.recorded import recorded

MEASURED = Path(__file__).parents[2] / "docs" / "measured"
SLOW_HOST = "hardware.roofline.host_scale=2"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RunTables:
    """Seconds of C1 at a rate at which MIRAGE lends, step by step; it stands for the run on a device."""
    workload = ["lengths=sharegpt", "rates=[60]", "workload.duration_s=1.5", "compare=[mirage]", "backend.leaps=false"]
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["+experiment=c1", *workload])
    (run,) = build(cfg).runs
    return read_run(carry_out(run, tmp_path_factory.mktemp("ran")))


def same(real: RunTables, **changes: object) -> Run:
    return again(real.info, recorded(real), {"backend.leaps": False, **changes})


@pytest.fixture(scope="module")
def retold(real: RunTables) -> list[Retold]:
    return steps_of(real, same(real))


def wanted(real: RunTables) -> dict[int, tuple[int, int]]:
    each = recorded(real).requests
    return {one.request.request_id: (one.request.arrival_ns, one.n_output_tokens) for one in each}


def test_in_the_world_in_which_it_ran_every_step_takes_as_long(retold: list[Retold]) -> None:
    assert sum(step.cycles for step in retold) > 100
    assert [step.lasted_ns for step in retold] == [step.real.lasted_ns for step in retold]
    assert [step.stall_ns for step in retold] == [step.real.stall_ns for step in retold]


def test_tokens_of_the_retold_steps_have_the_gaps_that_were_recorded(real: RunTables, retold: list[Retold]) -> None:
    n_tokens = {request_id: n for request_id, (_at_ns, n) in wanted(real).items()}
    assert gaps(token_times(retold, n_tokens, lambda step: step.real.end_ns)) == summarise(real).total.gap


def test_on_the_clock_of_equal_steps_no_figure_changes(real: RunTables, retold: list[Retold]) -> None:
    figures = summarise(real).total
    assert retimed(figures, retold, wanted(real)) == figures


def test_in_a_slower_world_the_run_decides_the_same_and_takes_longer(real: RunTables) -> None:
    slower = steps_of(real, same(real, **{"hardware.roofline.host_scale": 2}))
    figures = summarise(real).total
    later = retimed(figures, slower, wanted(real))
    assert later.busy_ns is not None
    assert figures.busy_ns is not None
    assert later.busy_ns > 1.02 * figures.busy_ns
    assert (later.n_lends, later.n_preemptions) == (figures.n_lends, figures.n_preemptions)
    assert later.output_tokens_per_s is not None
    assert figures.output_tokens_per_s is not None
    assert later.output_tokens_per_s < figures.output_tokens_per_s


def test_what_the_run_did_not_do_is_told_with_its_step(real: RunTables, monkeypatch: pytest.MonkeyPatch) -> None:
    def altered(*_args: object) -> Record:
        record = record_of(real, [model.shape.layer_bytes for model in same(real).models])
        steps = [*record.steps]
        steps[41] = replace(steps[41], n_decode_seqs=steps[41].n_decode_seqs + 1)
        return replace(record, steps=tuple(steps))

    monkeypatch.setattr(replays, "record_of", altered)
    with pytest.raises(Departed, match="step 42 of"):
        steps_of(real, same(real))


def test_deviations_are_what_was_put_in(retold: list[Retold]) -> None:
    """Steps with prompts took half as long again as they do when simulated."""
    longer = [
        replace(step, end_ns=step.start_ns + step.lasted_ns * 2 // 3) if step.real.n_prefill_tokens else step
        for step in retold
    ]
    found = deviations(longer)
    assert {kind: pytest.approx(1.5 if kind[0] else 1.0, rel=1e-6) for kind in found.overall} == found.overall
    assert all(ratio == pytest.approx(1.5 if kind[0] else 1.0) for each in found.blocks for kind, ratio in each.items())


def test_a_replay_without_deviations_is_the_run(real: RunTables, retold: list[Retold]) -> None:
    figures = replay(same(real), deviations(retold), 0)
    ours = summarise(real).total
    assert (figures.ttft, figures.gap, figures.output_tokens_per_s) == (ours.ttft, ours.gap, ours.output_tokens_per_s)


def test_replays_of_steps_that_vary_differ_and_those_of_one_number_do_not(
    real: RunTables, retold: list[Retold]
) -> None:
    found = deviations(retold)
    shaken = replace(found, blocks=tuple(dict.fromkeys(found.overall, scale) for scale in (0.9, 1.1)))
    rates = [replay(same(real), shaken, number).output_tokens_per_s for number in (0, 0, 1, 2, 3)]
    assert rates[0] == rates[1]
    assert len(set(rates)) > 2


def judged(figures: Figures, steps: float, replays: list[float], alone: float = 1.2) -> Judged:
    """Tokens/s of a simulation, of the same steps and of replays, as shares of the run's."""
    tolerances = {"tokens_per_s": Tolerance(0.05)}
    rate = figures.output_tokens_per_s
    assert rate is not None
    scaled = [replace(figures, output_tokens_per_s=rate * share) for share in (alone, steps, *replays)]
    found = [compared(METRICS[0], None, figures, scaled[0], None, tolerances)]
    (one,) = judge(found, figures, scaled[1], scaled[2:], None, tolerances)
    return one


@pytest.mark.parametrize(
    ("steps", "replays", "alone", "is_within"),
    [
        (1.03, [0.9, 1.1], 1.2, True),
        (1.06, [0.9, 1.1], 1.2, False),  # it has the wrong step times
        (1.03, [1.01, 1.3], 1.2, False),  # it decides otherwise than the device, whatever the step times
        (1.03, [0.8, 0.99], 1.2, False),
        (1.03, [], 1.2, False),  # nothing to excuse it
        (1.06, [1.1], 1.04, True),
    ],
)
def test_a_figure_that_is_out_is_excused_by_right_steps_and_replays_around_it_only(
    real: RunTables, steps: float, replays: list[float], alone: float, is_within: bool
) -> None:
    one = judged(summarise(real).total, steps, replays, alone)
    assert one.is_within is is_within
    if replays:
        assert one.half_width == pytest.approx((max(replays) - min(replays)) / 2)


def document(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "validate.json").read_text())


def test_a_wrong_machine_fails_however_many_replays_there_are(
    real: RunTables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(real.folder), SLOW_HOST, "--out", str(tmp_path), "--replays", "3"]) == OUT_OF_TOLERANCE
    told = capsys.readouterr().out
    assert "STEP TIMES OUT OF TOLERANCE" in told
    figures = {each["metric"]: each for each in document(tmp_path)["judged"]}
    assert not figures["tbt_p50"]["is_within"]
    assert len(figures["tbt_p50"]["replays"]) == 3


@pytest.mark.parametrize("name", ["h200_exec_c1/recompute", "h200_exec_c2/mirage"])
def test_what_a_device_measured_leads_to_what_it_decided(name: str) -> None:
    device = read_run(MEASURED / name)
    run = again(device.info, recorded(device), {"backend": {"world": "sim", "leaps": False}, "compute": "table"})
    retold = steps_of(device, run)
    n_tokens = {request_id: n for request_id, (_at_ns, n) in wanted(device).items()}
    assert gaps(token_times(retold, n_tokens, lambda step: step.real.end_ns)) == summarise(device).total.gap
