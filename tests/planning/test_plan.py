"""The command as its user meets it, on workloads of a second."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.carry_out import carry_out
from conf.planning.answer import Answer, Planner
from conf.planning.ask import question
from conf.planning.probe import Point, measured, watched
from conf.planning.slo import Slo
from conf.planning.systems import configuration, families
from policies.types import NS_PER_S
from sim.__main__ import COMMANDS
from tests.traces.burstiness import write_azure
from traces.results.folder import read_run

SMALL = ["--seeds", "2", "--requests", "80", "--jobs", "1", "--precision", "0.1", "--slo-ttft", "300ms"]
ONE = ["--models", "opt_13b", "--hardware", "h100_sxm", "--rate", "2", "--lengths", "300:60", *SMALL]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command: exit code, what it printed, what it complained of."""
    from conf.cli import dispatch

    def run(*arguments: str) -> tuple[int, str, str]:
        code = dispatch("python -m sim", COMMANDS, ["plan", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_it_answers_on_one_screen_with_a_document_and_a_page(
    plan: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, told, complained = plan(*ONE, "--json", f"{tmp_path}/a/plan.json", "--report", f"{tmp_path}/plan.html")
    assert (code, complained) == (0, "")
    assert len(told.splitlines()) <= 40
    assert all(len(line) <= 170 for line in told.splitlines())
    for asked in ("pay to lend", "Link:", "What binds", "At 2 requests/s the promise is", "recompute", "opt_13b"):
        assert asked in told
    document: Any = json.loads((tmp_path / "a" / "plan.json").read_text())
    assert document["verdict"] in ("pays", "unsure", "does not pay")
    assert {each["system"] for each in document["rates"]} >= {"recompute", "swap", "mirage 10%"}
    page = (tmp_path / "plan.html").read_text()
    assert not re.search(r"https?://|src=|<script|<link|url\(", page)
    assert len(page) < 300_000
    assert page.count("<figure>") == page.count("</svg>") == 3


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (Planner(question(ONE)).answer() for _ in range(2))
    assert first.rates == second.rates
    assert (first.gain, first.reliefs, first.link) == (second.gain, second.reliefs, second.link)


def test_a_model_from_a_config_is_served_without_a_file_of_ours(
    plan: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    }
    folder = tmp_path / "my model's"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    from_config, named = (
        [
            "--models",
            model,
            "--hardware",
            "h100_sxm",
            "--rate",
            "2",
            "--lengths",
            "300:60",
            "--policies",
            "recompute",
            *SMALL,
        ]
        for model in (str(folder), "llama_3_8b")
    )
    told = [plan(*arguments)[1] for arguments in (from_config, named)]
    rate = re.compile(r"^recompute +(\S+)/s", re.MULTILINE)
    assert rate.findall(told[0]) == rate.findall(told[1]) != []
    assert "my_model_s" in told[0]


def test_gpus_share_the_requests_evenly() -> None:
    one, four = (Planner(question([*ONE, "--policies", "recompute", *more])).answer() for more in ([], ["--gpus", "4"]))
    assert four.rates[0].rate.mean == pytest.approx(4 * one.rates[0].rate.mean, rel=0.2)


def test_a_promise_that_no_rate_keeps_is_told_with_what_is_missed(plan: Callable[..., tuple[int, str, str]]) -> None:
    code, told, _ = plan(*ONE, "--slo-tbt", "1ms")
    assert code == 0
    assert "kept at no rate: of the requests 0% miss their TTFT and 100% their TBT" in told


def test_a_gpu_whose_memory_is_plenty_is_told_that_nothing_is_lent(plan: Callable[..., tuple[int, str, str]]) -> None:
    _, told, _ = plan(*ONE, "--hbm", "400GiB", "--context", "1024")
    assert "does not pay to lend: mirage" in told
    assert "lends nothing" in told
    assert "at no speed would lending pay" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no models; name some"),
        (["--models", "opt_13b"], "no requests; give --trace FILE"),
        (["--models", "opt_31b", "--rate", "1"], "no model opt_31b"),
        (["--models", "opt_13b*0", "--rate", "1"], "0 is outside 1..64"),
        (["--models", "opt_13b", "--trace", "nowhere.csv"], "no file nowhere.csv"),
        (["--models", "opt_13b", "--rate", "-1"], "--rate: -1 must be a finite number above 0"),
        (["--models", "opt_13b", "--rate", "1", "--slo-ttft", "2"], "must be a number with one of s, ms, us"),
        (["--models", "opt_13b", "--rate", "1", "--hardware", "tpu"], "could not find hardware/tpu"),
        (["--models", "opt_13b", "--rate", "1", "--hardware", "./tpu.yaml"], "No such file"),
        (["--models", "opt_13b", "--rate", "1", "--hardware", "mi300a", "--lengths", "9:9"], "have one memory"),
        (["--models", "opt_30b*9", "--rate", "1", "--lengths", "9:9"], "need 5"),
        (["--models", "opt_13b", "--rate", "1", "--lengths", "9:x"], "PROMPT:OUTPUT tokens, as in 512:128"),
        (["--models", "opt_13b", "--rate", "1", "--lengths", "novels"], "could not find lengths/novels"),
        (["--models", "opt_13b", "--rate", "1", "--policies", "pray"], "no policy pray; there are recompute"),
        (["--models", "opt_13b", "--rate", "1", "--policies", "mirage"], "the first policy is the baseline"),
        (["--models", "opt_13b", "--rate", "1", "--weights", "1,2", "--lengths", "9:9"], "2 for 1 models"),
        (["--models", "opt_13b", "--rate", "1", "--seeds", "1"], "1 is outside 2..20"),
        (["--models", "opt_13b", "--rate", "1", "--hbm", "60"], "as in 60GiB"),
        (["--models", "opt_13b", "--rate", "1", "--speed"], "unrecognized arguments"),
        (["--models", "opt_13b", "--rate", "1", "faster"], "faster is neither an option nor KEY=VALUE"),
        (["--models", "opt_13b", "--rate", "1", "--lengths", "9:9", "sed=1"], "sed"),
        (["--models", "opt_13b", "--rate", "1", "--lengths", "9:9", "serving.block_tokens=0"], "must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    plan: Callable[..., tuple[int, str, str]], arguments: list[str], told: str
) -> None:
    code, said, complained = plan(*arguments)
    assert (code, said) == (2, "")
    assert complained.count("\n") == 1
    assert told in complained


def test_help_has_two_examples(plan: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        plan("--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.count("python -m sim plan --models") == 2


@pytest.fixture(scope="module")
def short_of_memory() -> Answer:
    """An answer for a GPU whose KV cache holds about seven requests."""
    return Planner(question([*ONE, "--policies", "recompute,mirage", "--hbm", "30GiB"])).answer()


@pytest.mark.parametrize("rate", [2.0, 6.0, 20.0])
def test_a_probe_that_ends_early_says_what_the_whole_run_says(short_of_memory: Answer, rate: float) -> None:
    answer, slo = short_of_memory, short_of_memory.asked.slo
    made = configuration(answer.asked)
    for family in families(answer.asked, made):
        run = made.run(family[0], answer.traffic)
        for stream in answer.traffic.streams:
            whole = measured(Point(run=run, stream=stream, slo=slo, rate_per_s=rate))
            assert watched(run, stream, slo, rate).is_kept == (whole.kept_share >= slo.share)


def test_what_is_measured_is_what_the_tables_of_a_run_say(short_of_memory: Answer, tmp_path: Path) -> None:
    answer = short_of_memory
    made = configuration(answer.asked)
    system = next(family[0] for family in families(answer.asked, made) if family[0].lends)
    run, stream = made.run(system, answer.traffic), answer.traffic.streams[0]
    slo = Slo(ttft_s=0.5, tbt_s=0.02)
    found = measured(Point(run=run, stream=stream, slo=slo, rate_per_s=9.0))
    tables = read_run(carry_out(replace(run, workload=stream.at(9.0)), tmp_path / "run"))
    of = tables.columns("requests", ("arrival_ns", "first_token_ns", "mean_gap_ns", "n_preemptions"))
    late = of["first_token_ns"] - of["arrival_ns"] > slo.ttft_s * NS_PER_S
    slow = of["mean_gap_ns"] > slo.tbt_s * NS_PER_S
    assert 0 < found.kept_share < 1
    assert found.kept_share == pytest.approx(float((~late & ~slow).mean()))
    assert (found.ttft_missed, found.tbt_missed) == pytest.approx((float(late.mean()), float(slow.mean())))
    assert found.n_preemptions == int(of["n_preemptions"].sum())


def test_what_an_experiment_sets_of_a_policy_is_kept() -> None:
    asked = question(["+experiment=exec_c1", "--policies", "recompute,mirage"])
    made = configuration(asked)
    assert [[system.name for system in family] for family in families(asked, made)] == [["recompute"], ["mirage 30%"]]
    policy: Any = made.run(families(asked, made)[1][0]).policy
    assert (policy.max_remapped_fraction, policy.inactive_bound) == (0.3, "cap")


def test_every_seed_of_a_trace_has_a_window_of_its_own(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t.csv", [(second * NS_PER_S, 100 + second, 5) for second in range(100)])
    arguments = ["--models", "opt_13b", "--hardware", "h100_sxm", "--trace", str(path), *SMALL]
    traffic = Planner(question([*arguments, "--requests", "30", "--policies", "recompute"])).answer().traffic
    first, last = ([a.request.n_prompt_tokens for a in stream.arrivals] for stream in traffic.streams)
    assert (first, last) == (list(range(100, 130)), list(range(170, 200)))
    assert traffic.rate_per_s == pytest.approx(1.0)
    halved = [arrival.request.arrival_ns for arrival in traffic.streams[0].at(2.0).arrivals()]
    assert halved == [second * NS_PER_S // 2 for second in range(30)]


def test_a_trace_that_is_too_short_to_tell_is_told_to_be(
    plan: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = write_azure(tmp_path / "t.csv", [(n * NS_PER_S, 20, 3) for n in range(30)])
    ask = ["--models", "opt_13b*2", "--hardware", "h100_sxm", "--trace", str(path), "--policies", "recompute,mirage"]
    code, told, _ = plan(*ask, "--caps", "0.25", "--seeds", "2", "--jobs", "1", "--precision", "0.5")
    assert code == 0
    assert "It cannot be told whether it pays to lend: every rate that was tried is kept" in told
    assert "take a trace of " in told
