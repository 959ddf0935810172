from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from bench.fit_roofline import read_machine, read_shape
from conf.cli import Refused
from conf.profile import TINY_MODELS, main
from executor.models.prefill_buffers import prefill_bucket_of
from executor.models.step import Row
from executor.profiling.grid import GRAPHED, WHOLE
from executor.profiling.steps import ragged
from executor.profiling.stopwatch import Size, Stopwatch, timing
from executor.transfer.streams import HostStreams
from sim.compute.fit import decode, prefill
from sim.compute.roofline import ModelRoofline
from sim.compute.table import TableModel
from traces.measured.device_tables import DeviceTable, Part, read_table

CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``profile --quick`` leaves: seconds on a CPU."""
    out = tmp_path_factory.mktemp("profile")
    assert main(["--quick", "--out", str(out), "--name", "here", "--archive", str(out / "all.tgz")]) == 0
    return out


@pytest.fixture(params=TINY_MODELS)
def table(measured: Path, request: pytest.FixtureRequest) -> DeviceTable:
    return read_table(measured / "tables" / "here", read_shape(request.param))


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return pairs


def test_every_part_was_measured(table: DeviceTable) -> None:
    not_tiny, of_a_gpu = {Part.EVEN_DECODE_STEP, Part.EXPERTS}, {Part.GRAPHED_LAUNCH, Part.GRAPHED_PREFILL_HOST}
    assert {each.part for each in table.timings} == set(Part) - not_tiny - of_a_gpu
    assert all(each.ns > 0 for each in table.timings if each.part is not Part.LAUNCH)


def test_the_simulator_computes_with_what_was_measured(table: DeviceTable) -> None:
    model = TableModel(table)
    for each in table.of(Part.DECODE_LAYER):
        assert model.layer_ns(decode(each.n_seqs, each.context_tokens)) >= each.ns  # more where contexts had a dip
    for each in table.of(Part.DECODE_HOST):
        assert model.host_ns(decode(each.n_seqs, each.n_seqs)) == each.ns
    assert model.layer_ns(prefill(100)) > 0


def test_a_decode_step_is_its_layers_and_its_head(table: DeviceTable) -> None:
    layers = {(each.n_seqs, each.context_tokens): each for each in table.of(Part.DECODE_LAYER)}
    for step in table.of(Part.DECODE_STEP):
        layers_ns = table.shape.n_layers * layers[step.n_seqs, step.context_tokens].ns
        assert layers_ns <= step.ns


def test_a_table_says_where_it_comes_from(table: DeviceTable) -> None:
    assert "memfd" in table.about["device"]
    assert table.about["command"] == "python -m executor profile --name here --quick"
    assert {"measured", "commit", "versions"} <= table.about.keys()


def test_the_hardware_file_is_one_like_the_others(measured: Path) -> None:
    path = measured / "hardware" / "here.yaml"
    ours: Any = OmegaConf.to_container(OmegaConf.load(path))
    another: Any = OmegaConf.to_container(OmegaConf.load(CONF / "hardware" / "h200_pcie.yaml"))
    types: dict[str, type[Any]] = {key: type(value) for key, value in flat(another).items()}
    types |= dict.fromkeys(("link.prefill_compute_slowdown", "link.prefill_copy_slowdown"), float)
    assert {key: type(value) for key, value in flat(ours).items()} == types
    assert ours["name"] == "here"
    for line in path.read_text().splitlines():
        assert "  # " in line or line.startswith(("#", "name:")) or line.endswith(":"), line


def test_its_roofline_is_about_as_fast_as_the_device(measured: Path, table: DeviceTable) -> None:
    roofline = ModelRoofline(read_machine(measured / "hardware" / "here.yaml"), table.shape)
    ratios = [
        roofline.layer_ns(decode(each.n_seqs, each.context_tokens)) / each.ns for each in table.of(Part.DECODE_LAYER)
    ]
    assert 0.5 < median(ratios) < 2  # a busy CPU, three repetitions


def test_what_is_the_devices_own_is_kept_beside_the_tables(measured: Path) -> None:
    kept = json.loads((measured / "tables" / "here" / "profile.json").read_text())
    machine = kept["machine"]
    assert machine["link"]["h2d_bytes_per_s"] > 0
    assert machine["vmm_layer"]["map_ns"] > 0
    assert {check["model"] for check in kept["checks"]} == {"tiny-opt", "tiny-llama"}


def test_all_of_it_is_in_one_archive_too(measured: Path, tmp_path: Path) -> None:
    with tarfile.open(measured / "all.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    written = {path.relative_to(measured): path.read_bytes() for path in measured.rglob("*.*") if path.suffix != ".tgz"}
    assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")} == written


def test_a_simulation_runs_with_the_profile(measured: Path, tmp_path: Path) -> None:
    from hydra import compose, initialize_config_module

    from conf.app import app as _  # noqa: F401  # the import registers the schema
    from conf.build import build
    from conf.carry_out import carry_out
    from traces.results.metrics import summary_of

    tables = f"compute_tables={measured / 'tables' / 'here'}"
    overrides = ["+experiment=exec_tiny", "backend=sim", "compute=table", tables, "compare=[mirage]"]
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", overrides)
    (run,) = build(cfg).runs
    assert summary_of(carry_out(run, tmp_path)).total.n_finished > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--quick", "--model", "opt_14b"], "there are deepseek_v3, "),
        (["--world", "cuda", "--model", "tiny_opt"], "backend.world=cuda"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() and "cuda" in arguments:
        pytest.skip("this machine has a GPU")
    with pytest.raises(Refused) as refused:
        main([*arguments, "--out", str(tmp_path)])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_that_does_not_fit_the_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"OPT-13b"):
        main(["--quick", "--model", "opt_13b", "--out", str(tmp_path)])


def test_a_model_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    shape: dict[str, Any] = yaml.safe_load((CONF / "model" / "tiny_opt.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**shape, "name": "mine"}))
    assert main(["--quick", "--model", str(path), "--out", str(tmp_path)]) == 0
    own = read_table(tmp_path / "tables" / "memfd", replace(read_shape("tiny_opt"), name="mine"))
    assert own.about["command"] == "python -m executor profile --model mine --quick"


@given(st.lists(st.integers(2, 400), min_size=1, max_size=150))
def test_the_simulator_pads_prefills_as_the_executor_does(prompts: list[int]) -> None:
    rows = [Row(token_ids=range(n_tokens), n_before=0, blocks=()) for n_tokens in prompts]
    assert GRAPHED.prefill_rows(sum(prompts), len(prompts)) == prefill_bucket_of(rows)


def test_what_graphs_hold_is_measured_at_every_size() -> None:
    assert set(GRAPHED.decode_seqs) <= {*WHOLE.batches} & {*WHOLE.tokens}
    assert set(GRAPHED.prefill_tokens) <= {*WHOLE.prompts} & {*WHOLE.tokens}
    assert GRAPHED.prefill_rows(WHOLE.n_eager_tokens, 1) is None


def test_repetitions_that_agree_are_not_gone_on_with() -> None:
    stopwatch = Stopwatch(HostStreams(), torch.device("cpu"), n_repeats=6)
    steady, restless = iter([50, 100, 101, 100]), iter([50, 100, 120, 100, 120, 100, 120])
    assert stopwatch.repeated(lambda: next(steady)) == [100, 101, 100]
    assert len(stopwatch.repeated(lambda: next(restless))) == 6


@given(st.integers(1, 300), st.integers(1, 4096), st.integers(0, 4096))
def test_ragged_contexts_have_their_mean_and_stay_in_range(n_seqs: int, mean: int, more: int) -> None:
    contexts = ragged(n_seqs, mean, mean + more)
    assert len(contexts) == n_seqs
    assert min(contexts) >= 1
    assert max(contexts) <= mean + more
    assert abs(sum(contexts) / n_seqs - mean) <= 0.5


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.integers(1, 48))
def test_a_timing_lies_among_its_repetitions(times_ns: list[int], n_parts: int) -> None:
    for is_mean in (True, False):
        its = timing(Part.HEAD, Size(1, 1), times_ns, n_parts=n_parts, is_mean=is_mean)
        assert min(times_ns) // n_parts <= its.ns <= max(times_ns) // n_parts + 1
        assert 0 <= its.spread_ns <= (max(times_ns) - min(times_ns)) // n_parts + 1


def test_the_slowest_host_time_does_not_count_in_a_mean() -> None:
    times_ns = [100] * 99 + [10**9]
    assert timing(Part.DECODE_HOST, Size(1, 1), times_ns, is_mean=True).ns == 100
