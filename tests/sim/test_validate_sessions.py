from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out
from conf.validate import OUT_OF_TOLERANCE, main
from sim.validation.compare import METRICS


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of a tiny mixture of experts under VAMP; it stands for the run on a device."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["+experiment=exec_vamp_tiny", "backend=sim", "compare=[vamp]"])
    (run,) = build(cfg).runs
    return carry_out(run, tmp_path_factory.mktemp("ran"))


def test_sessions_are_served_anew_and_a_simulation_of_a_simulation_has_no_error(ran: Path, tmp_path: Path) -> None:
    assert main([str(ran), "--out", str(tmp_path), "--tolerance", *(f"{metric.name}=0" for metric in METRICS)]) == 0
    figures = json.loads((tmp_path / "validate.json").read_text())["figures"]
    assert {each["error"] for each in figures} == {0.0}
    assert next(each for each in figures if each["metric"] == "finished")["real"] > 0


def test_a_turn_arrives_when_the_one_before_was_answered(ran: Path, tmp_path: Path) -> None:
    slower = ["hardware.roofline.host_scale=2", "--explain"]
    assert main([str(ran), *slower, "--out", str(tmp_path)]) == OUT_OF_TOLERANCE
    figures = json.loads((tmp_path / "validate.json").read_text())["figures"]
    ttft = next(each for each in figures if each["metric"] == "ttft_p50")
    assert 0 < ttft["error"] < 1, "requests do not pile up behind a server that is slower"
