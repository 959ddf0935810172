from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from conf import app
from conf.build import Experiment, build
from conf.paper.figures import FIGURES
from conf.run import Following
from policies.memory.ledger import partition
from policies.policy import OffloadsExperts
from policies.registry import POLICIES

CONF = Path(app.__file__).parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OF_MIRAGE = sorted(path.stem for path in (CONF / "experiment" / "mirage").glob("*.yaml") if path.stem != "common")
OF_VAMP = sorted(path.stem for path in (CONF / "experiment" / "vamp").glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("conf", version_base="1.3"):
        return compose("config", list(overrides))


def with_variant(variant: Mapping[str, object], *overrides: str) -> DictConfig:
    """A configuration with the variant ``capped``, as an experiment's YAML would have it."""
    return OmegaConf.create({**composed(*overrides), "variants": {"capped": variant}})


def built(*overrides: str) -> Experiment:
    return build(composed(*overrides))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_run_and_is_called_like_its_file(name: str) -> None:
    world = "executor" if name.startswith("exec_") else "sim"
    experiment = built(f"+experiment={name}", "backend=sim")  # which can run anything, the executor needs a device
    assert experiment.name == name
    assert experiment.runs[0].system == "recompute"  # the baseline comes first
    assert f"python -m {world} run +experiment={name}" in (CONF / "experiment" / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", OF_MIRAGE)
def test_every_experiment_of_mirage_can_run_and_is_called_like_its_file(name: str) -> None:
    experiment = built(f"+experiment=mirage/{name}")
    assert experiment.name == f"mirage_{name}"
    assert experiment.settings.figure in FIGURES
    assert (
        f"python -m sim run +experiment=mirage/{name}" in (CONF / "experiment" / "mirage" / f"{name}.yaml").read_text()
    )


@pytest.mark.parametrize("name", OF_VAMP)
def test_every_experiment_of_vamp_can_run_and_is_called_like_its_file(name: str) -> None:
    experiment = built(f"+experiment=vamp/{name}")
    assert experiment.name == f"vamp_{name}"
    assert {run.system for run in experiment.runs[:1]} <= {"recompute"}  # arithmetic alone runs nothing
    assert f"python -m sim run +experiment=vamp/{name}" in (CONF / "experiment" / "vamp" / f"{name}.yaml").read_text()


ONLY_SIMULATED = {"pie", "cpu_attention", "on_demand", "mirage_cpu", "lru_experts"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_only_the_simulator_can_carry_out_says_so(name: str) -> None:
    has_experts = isinstance(POLICIES[name](), OffloadsExperts)
    overrides = (f"+experiment={'exec_vamp_tiny' if has_experts else 'exec_tiny'}", f"compare=[{name}]")
    if name in ONLY_SIMULATED:
        with pytest.raises(
            ValueError, match=f"policy {name} .* which only the simulator can do; run it with python -m sim"
        ):
            built(*overrides)
    else:
        assert [run.system for run in built(*overrides).runs] == [name]
    assert [run.system for run in built(*overrides, "backend=sim").runs] == [name]


def test_agents_in_a_row_are_a_workload() -> None:
    run = built("workload.agents=true", "lengths=[alpaca]", "rates=[1]").runs[0]
    assert isinstance(run.workload, Following)
    assert "each answer is the next prompt: OPT-13b to Llama-2-13b to Llama-3-8b" in run.workload.description


def test_sessions_take_the_place_of_arrivals_and_lengths() -> None:
    run = built("+experiment=vamp/table2").runs[0]
    assert (run.lengths, run.workload.description) == ("in_house_h100", "28 sessions of 12 turns each")
    assert "sessions" in run.config
    assert not {"arrivals", "lengths", "workload"} & run.config.keys()
    assert "sessions" not in built().runs[0].config


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["serving=vllm_v0"], "experts need serving.scheduler=vllm_v1"),
        (["compute=table"], "qwen3_next_80b_a3b_tp2.csv is not there: nothing was measured"),
        (
            ["compute=table", "mix.experts.routing={kind: zipf, exponent: 1.0}"],
            "with routing.kind=zipf set compute=roofline",
        ),
        (["compute=aiconfigurator"], "knows no experts of ranks"),
        (["backend=memfd", "parallel.jobs=1"], "the executor launches no step ahead"),
        (["mix.experts.routing.exponent=1.0"], "set exponent for zipf"),
        (["mix.experts.share=0.8"], "is less than its weights and activations"),
    ],
)
def test_what_does_not_go_with_experts_is_refused(changes: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        built("+experiment=vamp/table2", *changes)


def test_experts_are_offloaded_only_where_there_are_some() -> None:
    with pytest.raises(ValueError, match="vamp offloads experts, and mix=c1 has none"):
        built("compare=[vamp]")


@pytest.mark.parametrize(
    "group", ["hardware", "mix", "tenancy", "serving", "backend", "lengths", "sessions", "arrivals"]
)
def test_every_choice_of_a_group_fits_the_schema(group: str) -> None:
    choices = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert choices
    for choice in choices:
        assert group in composed(f"{group}={choice}")


def test_every_mix_fits_the_machine_of_the_paper() -> None:
    for mix in sorted(
        path.stem for path in (CONF / "mix").glob("*.yaml") if not path.stem.startswith(("exec_vamp", "own", "qwen3_"))
    ):
        assert built(f"mix={mix}").runs


@pytest.mark.parametrize(
    ("mix", "kv_tokens"),
    [("c1", (11_733, 11_336, 24_906)), ("c2", (4_328, 3_007)), ("single_opt_13b", (11_733,))],
)
def test_the_shares_of_the_paper_leave_this_much_kv_cache(mix: str, kv_tokens: tuple[int, ...]) -> None:
    # Golden: share * 97871 MiB - weights - activations, over the KV bytes of a token; OPT-13b:
    # (0.35 * 102625181696 - 25706946560 - 6e8) / 819200 = 11733. Whole pages for each layer, for the other
    # weights and for the activations: one more for each of up to 48 layers and 3, of 2 MiB.
    run = built(f"mix={mix}").runs[0]
    for model, expected in zip(run.models, kv_tokens, strict=True):
        part = partition(model.shape, run.hardware, share=model.share, activation_bytes=model.activation_bytes)
        lost = expected - part.kv_pages * run.hardware.page_bytes // model.shape.kv_bytes_per_token
        assert 0 <= lost <= (model.shape.n_layers + 3) * run.hardware.page_bytes // model.shape.kv_bytes_per_token


def test_systems_are_compared_under_each_lengths_and_each_rate() -> None:
    experiment = built("lengths=[alpaca,sharegpt]", "rates=[2,4]", "compare=[recompute,mirage]")
    assert [(run.lengths, run.settings.arrivals.rate, run.system) for run in experiment.runs] == [
        (lengths, rate, system)
        for lengths in ("alpaca", "sharegpt")
        for rate in (2, 4)
        for system in ("recompute", "mirage")
    ]


def test_systems_are_compared_under_the_same_arrivals() -> None:
    first, second = built("+experiment=demo", "compare=[recompute,mirage]").runs
    assert list(first.workload.arrivals()) == list(second.workload.arrivals())


def test_a_variant_is_a_policy_under_a_name_and_settings_of_its_own() -> None:
    capped = {"policy": "mirage", "overrides": {"policy": {"mirage": {"max_remapped_fraction": 0.1}}, "seed": 3}}
    mirage, variant = build(with_variant(capped, "compare=[mirage,capped]")).runs
    assert (variant.system, type(variant.policy)) == ("capped", POLICIES["mirage"])
    assert variant.settings.policy["mirage"] == variant.policy != mirage.policy
    assert (mirage.settings.seed, variant.settings.seed) == (0, 3)
    assert variant.config["seed"] == 3


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        ({"policy": "cake"}, r"variants\.capped\.policy=cake; there are recompute, swap, mirage"),
        ({"policy": "mirage", "overrides": {"sed": 1}}, r"variants\.capped: no key sed; did you mean seed"),
        ({"policy": "mirage", "overrides": {"seed": -1}}, r"variants\.capped: seed=-1 must be at least 0"),
    ],
)
def test_a_faulty_variant_is_named(variant: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build(with_variant(variant, "compare=[capped]"))


def test_a_run_keeps_its_configuration_as_json_can_hold_it() -> None:
    recompute, mirage = (run.config for run in built("+experiment=demo", "policy.mirage.victim_order=lru").runs)
    assert OmegaConf.to_yaml(mirage).count("???") == 0
    assert set(mirage) >= {"seed", "hardware", "mix", "policy"}
    assert "victim_order: lru" in OmegaConf.to_yaml(mirage)
    assert "victim_order" not in OmegaConf.to_yaml(recompute)  # nothing that it does not depend on


def test_every_policy_of_the_registry_has_its_settings_in_the_configuration() -> None:
    assert set(built().runs[0].settings.policy) == set(POLICIES)


def test_the_shared_models_are_counted_in_the_order_of_the_mix() -> None:
    names = [model.shape.name for model in built("mix=c1").runs[0].models]
    assert names == ["OPT-13b", "Llama-2-13b", "Llama-3-8b"]


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ("arrivals.rate=3 rates=[1,2] +rates_by_lengths.sharegpt=[4.0]", [3.0]),
        ("rates=[1,2] +rates_by_lengths.sharegpt=[4.0]", [1.0, 2.0]),
        ("+rates_by_lengths.sharegpt=[4.0,5.0]", [4.0, 5.0]),
    ],
)
def test_the_narrower_setting_says_the_rates(given: str, rates: list[float]) -> None:
    runs = built("lengths=sharegpt", "compare=[recompute]", *given.split()).runs
    assert [run.settings.arrivals.rate for run in runs] == rates


def test_lengths_without_rates_beside_others_that_have_some_are_refused() -> None:
    with pytest.raises(ValueError, match="rates_by_lengths has none for lengths=sharegpt"):
        built("lengths=sharegpt", "+rates_by_lengths.alpaca=[6.0]")
