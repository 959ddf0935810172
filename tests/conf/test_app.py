from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conf.app import flags_last
from conf.build import Experiment
from conf.cli import Refused
from policies.registry import POLICIES
from tests.conftest import REPOSITORY

Told = list[tuple[Experiment, Path]]
CommandLine = Callable[..., int]


def test_an_experiment_runs_in_a_folder_of_its_own(told: Told, command: CommandLine) -> None:
    assert command("+experiment=demo", "output.root=results") == 0
    assert command("+experiment=demo", "output.root=results") == 0
    (first, folder), (second, other) = told
    assert [run.config for run in first.runs] == [run.config for run in second.runs]
    assert folder != other
    assert folder.parent == other.parent == Path.cwd() / "results" / "demo"
    assert folder.is_dir()


@pytest.mark.parametrize(
    "line",
    ["-m +experiment=demo seed=0,1", "+experiment=demo --multirun seed=0,1", "+experiment=demo seed=0,1 -m"],
)
def test_a_sweep_is_asked_for_anywhere_on_the_line(line: str, told: Told, command: CommandLine) -> None:
    command(*line.split())
    assert [experiment.runs[0].settings.seed for experiment, _ in told] == [0, 1]
    assert len({folder for _, folder in told}) == 2


@pytest.mark.parametrize(
    ("line", "sorted_line"),
    [
        ("--cfg job a=1", "a=1 --cfg job"),
        ("a=1 -m +b=2 ~c --config-dir here d=3", "a=1 +b=2 ~c d=3 -m --config-dir here"),
        ("--info a=1", "a=1 --info"),
        ("--config-dir=here a=1", "a=1 --config-dir=here"),
    ],
)
def test_flags_and_their_values_come_last_in_their_order(line: str, sorted_line: str) -> None:
    assert flags_last(line.split()) == sorted_line.split()


@pytest.mark.parametrize(
    ("line", "told_to_user"),
    [
        ("sed=1", "no key sed; did you mean seed?"),
        ("+serving.blocks=1", "no key serving.blocks; did you mean block_tokens?"),
        ("tenancy.slice_s=1", "no key tenancy.slice_s; there are interference, kind, order, quantum_s, shares"),
        ("policy.mirage.max_fraction=1", "no key policy.mirage.max_fraction; did you mean max_remapped_fraction?"),
        ("seed=abc", "seed: Value 'abc' of type 'str' could not be converted to Integer"),
        ("policy.mirage.victim_order=fifo", "policy.mirage.victim_order: Invalid value 'fifo', expected one of"),
        (
            "policy=mirage",
            "policy is a group of settings, not a value; there are cpu_attention, fixed_share",
        ),
        ("seed=???", "seed has no value; give seed=VALUE"),
        ("seed=-1", "seed=-1 must be at least 0"),
        ("policy.mirage.max_remapped_fraction=0", "policy.mirage.max_remapped_fraction=0.0 is outside (0, 1]"),
        ("mix.models.opt_13b.share=0.1", "model OPT-13b: 10% of gh200_paper"),
        (
            "compare=[mirage,cake]",
            "compare: no policy or variant cake; there are recompute, swap, mirage",
        ),
        ("compare=[]", "compare and lengths must each name at least one"),
        ("serving.block_tokens=0", "serving.block_tokens=0 must be at least 1"),
        ("hardware.roofline.gemm_bandwidth_share=0", "roofline: gemm_bandwidth_share=0.0 must be positive"),
        ("hardware.vmm.range_ns=-1", "vmm: range_ns=-1 and page_ns=74000 must be >= 0"),
        ("hardware.link.compute_slowdown=-0.1", "link: slowdown_ppm=-100000 must be >= 0"),
        ("arrivals=azure arrivals.path=nowhere.csv", "nowhere.csv: No such file or directory"),
        ("+experiment=c9", "could not find experiment/c9; there are c1, c2, demo"),
        ("experiment=c1", "Could not override 'experiment'. No match in the defaults list"),
        ("mix=c9", "could not find mix/c9; there are c1, c2, exec_tiny"),
        ("lengths=[c9]", "could not find lengths/c9; --help lists what there is"),
        ("rates=[1", "rates=[1: "),
        ("seed=1,2", "Ambiguous value for argument 'seed=1,2'"),
        ("output.root=file", "cannot write file/default/"),
        ("-m seed=1,2 output.root=file", "cannot write file/default/"),
        ("grid.seed=[1,2]", "no key grid.seed; add it with +grid.seed=VALUE"),
        ("jobs=2", "no key jobs; there are arrivals, backend,"),
        ("-m seed=1,abc", "seed: Value 'abc' of type 'str' could not be converted to Integer"),
        ("-m +experiment=c1,c9", "could not find experiment/c9"),
        ("-m seed=-1,1", "seed=-1 must be at least 0"),
        ("--config-dir nowhere", "Additional config directory"),
        ("-m --cfg job", "-m and --cfg exclude each other; give one of them"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(line: str, told_to_user: str, told: Told, command: CommandLine) -> None:
    Path("file").touch()
    with pytest.raises(Refused) as refused:
        command(*line.split())
    message = str(refused.value)
    assert message.startswith(told_to_user)
    assert "\n" not in message
    assert not told


def test_a_faulty_file_is_named(told: Told, command: CommandLine) -> None:
    folder = Path("mine/experiment")
    folder.mkdir(parents=True)
    (folder / "typo.yaml").write_text("# @package _global_\nsed: 1\n")
    (folder / "syntax.yaml").write_text("rates: [1\n")
    with pytest.raises(Refused, match=r"In 'experiment/typo': .* Key 'sed' not in 'Settings'"):
        command("--config-dir", "mine", "+experiment=typo")
    with pytest.raises(Refused, match=r"syntax\.yaml"):
        command("--config-dir", "mine", "+experiment=syntax")
    assert not told


def test_an_experiment_of_ones_own_is_found_with_config_dir(told: Told, command: CommandLine) -> None:
    folder = Path("mine/experiment")
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text("# @package _global_\nname: own\ncompare: [swap]\n")
    command("+experiment=own", "--config-dir", "mine")
    [(experiment, _)] = told
    assert (experiment.name, [run.system for run in experiment.runs]) == ("own", ["swap"])


def test_the_experiment_in_the_readme_can_run(told: Told, command: CommandLine) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    folder = Path("mine/experiment")
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(readme.split("```yaml\n")[1].split("```")[0])
    command("--config-dir", "mine", "+experiment=mine")
    [(experiment, _)] = told
    assert {run.system for run in experiment.runs} == {"recompute", "mirage", "careful"}


def test_the_configuration_is_printed_and_nothing_runs(
    told: Told, command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    command("+experiment=c1", "--cfg", "job", "seed=5")
    assert "\nseed: 5\n" in capsys.readouterr().out
    assert not told
    assert not list(Path.cwd().iterdir())


def test_help_lists_what_there_is_to_choose(command: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command("--help")
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "experiment: c1, c2, demo" in out
    assert "mix: c1, c2, exec_tiny" in out
    assert ", ".join(POLICIES) in out
