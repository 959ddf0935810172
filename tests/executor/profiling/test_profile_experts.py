from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_module

from conf.app import app as _  # noqa: F401  # the import registers the schema
from conf.build import build
from conf.carry_out import carry_out
from conf.cli import Refused
from conf.profile import main
from executor.models.decode_buffers import BATCH_BUCKETS
from executor.profiling.grid import WHOLE_EXPERTS
from policies.moe import MoeShape
from policies.types import Work
from sim.compute.expert_table import ExpertTableModel
from tests.sim.tables import prompts
from tests.sim.test_moe_roofline import decode, read_ranks
from traces.measured.device_tables import Part
from traces.measured.expert_tables import ExpertTimings, read_expert_table
from traces.results.folder import RunTables, read_run

CONF = Path(__file__).parents[3] / "conf"
TINY = MoeShape(**yaml.safe_load((CONF / "model" / "moe" / "tiny_moe.yaml").read_text()))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``profile --quick`` leaves of a tiny mixture of experts: seconds on a CPU."""
    out = tmp_path_factory.mktemp("profile")
    assert main(["--quick", "--model", "tiny_moe", "--out", str(out), "--name", "here"]) == 0
    assert not (out / "hardware").exists(), "the machine is measured with dense models"
    return out / "tables" / "here"


@pytest.fixture
def table(tables: Path) -> ExpertTimings:
    return read_expert_table(tables, TINY, 1)


def run(*overrides: str) -> Any:
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["+experiment=exec_vamp_tiny", "compare=[recompute]", *overrides])
    (made,) = build(cfg).runs
    return made


def step_ns(ran: RunTables, *, decodes_alone: bool) -> float:
    """Median time of a step's kind, its waits left out."""
    steps = ran.columns("steps", ("start_ns", "end_ns", "stall_ns", "n_prefill_tokens"))
    of_kind = (steps["n_prefill_tokens"] == 0) == decodes_alone
    return float(np.median((steps["end_ns"] - steps["start_ns"] - steps["stall_ns"])[of_kind]))


def test_what_a_simulation_needs_was_measured(table: ExpertTimings) -> None:
    model = ExpertTableModel(table, read_ranks("memfd_x1"))
    for work in (decode(4, 16), prompts([(16, 0)] * 2), prompts([(1, 64)])):
        assert len(model.layers(work)) == TINY.n_layers
        assert min(model.layers(work)[0].all_ns, model.head_ns(work), model.host_ns(work)) > 0
    assert {Part.DECODE_STEP, Part.PREFILL_STEP, Part.MIXED_STEP} <= {each.part for each in table.timings}, (
        "to check it"
    )


def test_how_many_experts_are_used_follows_from_the_tokens(table: ExpertTimings) -> None:
    for each in table.of(Part.EXPERTS):
        most = min(TINY.n_experts, each.n_tokens * TINY.n_active)
        assert min(TINY.n_active, most) <= each.n_experts <= most
    assert sum(each.n_experts > 0 for each in table.timings) == len(table.of(Part.EXPERTS))


def test_a_decode_step_is_told_by_its_parts(table: ExpertTimings) -> None:
    """Within the noise of a busy CPU."""
    model = ExpertTableModel(table, read_ranks("memfd_x1"))
    ratios = [
        TINY.n_layers * model.layers(work)[0].all_ns / each.ns
        for each in table.of(Part.DECODE_LAYER)
        for work in [Work(0, 0, 0, each.n_seqs, each.context_tokens, each.n_seqs)]
    ]
    assert 0.5 < median(ratios) / TINY.n_layers < 2


def test_one_of_two_ranks_is_measured_with_its_half(tmp_path: Path) -> None:
    assert main(["--quick", "--model", "tiny_moe", "--ranks", "2", "--out", str(tmp_path), "--name", "here"]) == 0
    half = read_expert_table(tmp_path / "tables" / "here", TINY, 2)
    assert half.about["command"] == "python -m executor profile --model tiny_moe --ranks 2 --name here --quick"
    assert ExpertTableModel(half, read_ranks("memfd_x2")).layers(decode(4, 16))[0].reduce_ns > 0


def test_its_table_foretells_how_long_the_steps_of_a_run_take(tables: Path, tmp_path: Path) -> None:
    """To the right order: on a CPU that others use nothing more can be held."""
    real = read_run(carry_out(run(), tmp_path / "real"))
    told = read_run(
        carry_out(run("backend=sim", "compute=table", f"compute_tables={tables}"), tmp_path / "told"),
    )
    for decodes_alone in (True, False):
        assert 1 / 4 < step_ns(told, decodes_alone=decodes_alone) / step_ns(real, decodes_alone=decodes_alone) < 4


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="Qwen3-Next-80B-A3B: 94% of memfd") as refused:
        main(["--quick", "--model", "qwen3_next_80b_a3b", "--out", str(tmp_path)])
    assert "\n" not in str(refused.value)


def test_what_graphs_hold_is_measured_at_every_size() -> None:
    assert set(BATCH_BUCKETS) <= {*WHOLE_EXPERTS.batches} & {*WHOLE_EXPERTS.tokens}
    assert not {each[0] for each in WHOLE_EXPERTS.between} & {*BATCH_BUCKETS}
