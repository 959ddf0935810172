from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from conf.again import again
from conf.build import build
from conf.models import catalogue, named
from conf.own_mix import activations, each_named
from conf.run import run_info
from policies.memory.ledger import partition
from tests.conf.test_build import built, composed

OWN = ("mix=own", "hardware=h100_sxm", "rates=[1]")


def test_models_of_the_catalogue_and_of_configs_share_a_gpu(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    more = {"intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960}
    config = {"model_type": "qwen3", **sizes, **more, "_name_or_path": "Q/My-8B"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    cfg = composed(*OWN, f"mix.of=[opt_13b,{tmp_path}]", "mix.context_tokens=4096")
    run = build(cfg).runs[0]
    assert list(run.settings.mix.models) == ["opt_13b", "my_8b"]
    assert [model.shape.max_context_tokens for model in run.models] == [2048, 4096]
    assert run.models[1].shape.layer_bytes == named("qwen3_8b").shape.layer_bytes


def test_a_run_keeps_the_sizes_and_shares_that_were_worked_out() -> None:
    run = built(*OWN, "mix.of=[llama_3_8b*2]").runs[0]
    mix: Any = run.config["mix"]
    assert mix["of"] == []
    assert mix["models"]["llama_3_8b_2"]["shape"]["name"] == "Llama-3-8b"
    repeated = again(run_info(run), run.workload, {})
    assert repeated.models == run.models


@settings(max_examples=8, deadline=None)
@given(
    names=st.lists(st.sampled_from(["opt_6_7b", "llama_3_8b", "llama_2_7b"]), min_size=1, max_size=3),
    weights=st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_every_model_holds_tokens_in_proportion_to_its_part_of_the_requests(
    names: list[str], weights: list[int]
) -> None:
    parts = weights[: len(names)]
    of = f"mix.of=[{','.join(names)}]"
    run = build(composed(*OWN, of, f"workload.weights={parts}")).runs[0]
    tokens: list[float] = []
    for model in run.models:
        part = partition(model.shape, run.hardware, share=model.share, activation_bytes=model.activation_bytes)
        tokens.append(part.kv_pages * run.hardware.page_bytes / model.shape.kv_bytes_per_token)
    assert sum(model.share for model in run.models) == pytest.approx(0.9)
    for held, weight in zip(tokens, parts, strict=True):
        assert held / weight == pytest.approx(tokens[0] / parts[0], rel=0.02)  # whole pages


def test_given_shares_are_taken_as_they_are() -> None:
    run = built(*OWN, "mix.of=[llama_3_8b*2]", "mix.shares=[0.3,0.25]").runs[0]
    assert [model.share for model in run.models] == [0.3, 0.25]


@pytest.mark.parametrize("mix", ["c1", "c2"])
def test_activations_are_within_a_quarter_gigabyte_of_the_estimates_of_the_papers_mixes(mix: str) -> None:
    run = built(f"mix={mix}").runs[0]
    serving: Any = OmegaConf.to_container(composed().serving)
    for model in run.models:
        assert abs(activations(model.shape, serving) - model.activation_bytes) < 0.25e9


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["mix.of=[llama_3_8b,opt_30b*2]"], "llama_3_8b, opt_30b, opt_30b_2 need .* GiB .*, and 90% of h100_sxm is 72"),
        (["mix.of=[llama_9]"], "no model llama_9 in the catalogue and no such file; did you mean llama_"),
        (["mix.of=[opt_13b*99]"], r"opt_13b\*99: 99 is outside 1..64"),
        (["mix.of=[opt_13b]", "mix.shares=[0.2,0.3]"], "are 2 for 1 models"),
        (["mix.of=[opt_13b]", "mix.memory_share=1.5"], r"memory_share=1.5 is outside \(0, 1\]"),
        (["mix=c1", "mix.of=[opt_13b]"], "exclude each other; set mix=own"),
        ([], "mix.models is empty"),
    ],
)
def test_a_mix_that_cannot_be_is_told_in_a_line(overrides: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told) as mistake:
        built(*OWN, *overrides)
    assert "\n" not in str(mistake.value)


def test_every_model_of_the_catalogue_can_be_simulated() -> None:
    for name in catalogue():
        overrides = [f"mix.of=[{name}]", "hardware.hbm_bytes=2_000_000_000_000", "mix.context_tokens=2048"]
        assert built(*OWN, *overrides).runs


def test_policies_that_lend_are_refused_where_host_and_device_have_one_memory() -> None:
    own = ("mix=own", "mix.of=[opt_13b]", "rates=[1]", "hardware=mi300a")
    with pytest.raises(ValueError, match="mirage lends, and on hardware mi300a host and device have one memory"):
        built(*own, "compare=[recompute,mirage]")
    assert built(*own, "compare=[recompute]").runs


def test_repeated_names_are_told_apart() -> None:
    assert [model.key for model in each_named(["opt_13b", "opt_13b*2"])] == ["opt_13b", "opt_13b_2", "opt_13b_3"]
