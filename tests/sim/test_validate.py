from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from bench.fit_roofline import read_machine, read_shape
from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out
from conf.cli import Refused
from conf.validate import OUT_OF_TOLERANCE, main
from sim.compute.roofline import ModelRoofline
from sim.validation.causes import causes
from sim.validation.compare import METRICS, TOLERANCES, Tolerance, compare
from tests.sim.tables import sampled_from
from traces.measured.device_tables import write_table
from traces.results.folder import read_run
from traces.workload.recorded import recorded

CONF = Path(__file__).parents[2] / "conf"
SLOW_HOST = "hardware.roofline.host_scale=2"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seconds of C1 at a rate at which MIRAGE lends; it stands for the run on a device."""
    workload = ["lengths=sharegpt", "rates=[60]", "workload.duration_s=2", "compare=[mirage]"]
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["+experiment=c1", *workload])
    (run,) = build(cfg).runs
    return carry_out(run, tmp_path_factory.mktemp("ran"))


def document(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "validate.json").read_text())


def test_a_simulation_of_a_simulation_has_no_error_at_all(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ran), "--out", str(tmp_path), "--tolerance", *(f"{metric.name}=0" for metric in METRICS)]) == 0
    figures = document(tmp_path)["figures"]
    assert len(figures) == len(METRICS) * 4 + 1, "all models together, each of three, and the steps"
    assert {each["error"] for each in figures} == {0.0}
    assert {each["error_steps"] for each in figures if each["unit"] in ("s", "ms")} == {0.0}
    assert next(each for each in figures if each["metric"] == "lends")["real"] > 0
    assert "OUT OF" not in capsys.readouterr().out


def test_a_simulation_with_another_host_is_out_of_tolerance(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(ran), SLOW_HOST, "--out", str(tmp_path)]) == OUT_OF_TOLERANCE
    tbt = next(each for each in document(tmp_path)["figures"] if each["metric"] == "tbt_p50")
    assert tbt["error"] > 0.05
    assert tbt["error_steps"] > 0
    assert not tbt["is_within"]
    assert "OUT OF TOLERANCE" in capsys.readouterr().out


def test_a_wider_tolerance_lets_it_pass(ran: Path, tmp_path: Path) -> None:
    wide = [f"{name}=1000" for name in TOLERANCES]
    assert main([str(ran), SLOW_HOST, "--out", str(tmp_path), "--tolerance", *wide]) == 0


def test_two_steps_of_the_real_run_are_tolerated_where_ten_percent_are_not(ran: Path) -> None:
    run = read_run(ran)
    assert not compare(run, run, {"ttft_p99": Tolerance(0)})[2].error
    with pytest.raises(ValueError, match="no figure ttft_p98; there are tokens_per_s"):
        compare(run, run, {"ttft_p98": Tolerance(0.1)})


def test_the_difference_of_two_runs_falls_apart_into_pace_and_number(ran: Path, tmp_path: Path) -> None:
    main([str(ran), SLOW_HOST, "--out", str(tmp_path)])
    found = causes(read_run(ran), read_run(tmp_path))
    real_ns, simulated_ns = (
        sum(side.n * side.mean_ns for side in sides)
        for sides in ([cause.real for cause in found], [cause.simulated for cause in found])
    )
    contributed_ns = sum(cause.by_pace_ns + cause.by_number_ns for cause in found)
    assert contributed_ns == pytest.approx(simulated_ns - real_ns, rel=1e-6)
    assert sum(cause.by_pace_ns for cause in found) > 0


def test_the_same_run_twice_has_no_causes(ran: Path) -> None:
    run = read_run(ran)
    found = causes(run, run)
    assert all(cause.weight_ns == 0 for cause in found)
    steps = run.columns("steps", ("start_ns", "end_ns"))
    lasted_ns = (steps["end_ns"] - steps["start_ns"]).sum()
    assert sum(cause.real.n * cause.real.mean_ns for cause in found) >= lasted_ns * (1 - 1e-9)


def test_explain_names_the_classes_of_steps(ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(ran), SLOW_HOST, "--out", str(tmp_path), "--explain"])
    told = capsys.readouterr().out
    assert "by pace: " in told
    assert "by number: " in told
    assert "between steps: 0.00 ms" in told, "a simulation has nothing between its steps"


def test_measured_tables_take_the_place_of_the_roofline(ran: Path, tmp_path: Path) -> None:
    machine = read_machine(CONF / "hardware" / "gh200_paper.yaml")
    for name in ("opt_13b", "llama_2_13b", "llama_3_8b"):
        write_table(tmp_path, sampled_from(ModelRoofline(machine, read_shape(name)), read_shape(name)))
    changes = ["compute=table", f"compute_tables={tmp_path}"]
    assert main(
        [str(ran), *changes, "--out", str(tmp_path / "run"), "--tolerance", *(f"{n}=30" for n in TOLERANCES)]
    ) in (
        0,
        OUT_OF_TOLERANCE,
    )
    assert document(tmp_path / "run")["compute"] == "table"
    assert [Path(path).name for path in document(tmp_path / "run")["tables"]] == [
        "opt_13b.csv",
        "llama_2_13b.csv",
        "llama_3_8b.csv",
    ]


def test_hardware_brings_its_times_and_leaves_the_memory(ran: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    main([str(ran), "--hardware", str(CONF / "hardware" / "h200_pcie.yaml"), "--out", str(out)])
    hardware: Any = read_run(out).info.config["hardware"]
    was: Any = read_run(ran).info.config["hardware"]
    assert hardware["name"] == "h200_pcie"
    assert hardware["link"]["h2d_bytes_per_s"] == 55_400_000_000
    assert hardware["hbm_bytes"] == was["hbm_bytes"]


def test_the_recorded_requests_are_those_that_were_served(ran: Path) -> None:
    run = read_run(ran)
    requests = recorded(run)
    arrivals_ns = [each.request.arrival_ns for each in requests.arrivals()]
    assert arrivals_ns == sorted(arrivals_ns)
    n_output = run.columns("requests", ("n_output_tokens",))["n_output_tokens"]
    assert sum(each.n_output_tokens for each in requests.arrivals()) == np.sum(n_output)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "name the folder of a run"),
        (["RUN", "hardware.roofline.host_scal=2"], "did you mean host_scale?"),
        (["RUN", "compute=table"], "run python -m executor profile --model opt_13b"),
        (["RUN", "compute"], "compute must be KEY=VALUE"),
        (["RUN", "--tolerance", "tbt_p50"], "must be NAME=PERCENT"),
        (["RUN", "--tolerance", "tbt=5"], "no figure tbt; there are"),
        (["RUN", "--hardware", "nowhere.yaml"], "name a file such as conf/hardware/h200_pcie.yaml"),
    ],
)
def test_a_mistake_is_one_line(ran: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    run, *rest = arguments
    with pytest.raises(Refused) as refused:
        main([str(ran) if run == "RUN" else run, *rest, "--out", str(tmp_path)])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_that_did_not_end_is_refused(ran: Path, tmp_path: Path) -> None:
    header = json.loads((ran / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**header, "state": "incomplete"}))
    with pytest.raises(Refused, match="is incomplete; name the folder of a run that went to its end"):
        main([str(tmp_path)])
