"""What the executor makes of a mixture of experts, before a device is touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executor.memory.ranges import LendMode
from executor.mixture.plan import MoePlan, plan_moe
from executor.models.moe import moe_layout
from executor.models.spec import moe_spec_of
from policies.lru_experts import LruExperts
from policies.moe import MoeShape
from policies.policy import Policy
from policies.recompute import Recompute
from policies.types import MIB
from tests.executor.moe.serve import LENDS_FREELY, SERVING, Setting
from tests.sim.test_moe_model_files import read


def planned(setting: Setting, *, vmm: str = "range", weights: dict[str, str] | None = None) -> MoePlan:
    ledger, lane, served = setting.open()
    return plan_moe(served, ledger, lane, setting.hardware, setting.serving, vmm=vmm, weights=weights or {}, seed=7)


def test_qwen3_30b_a3b_is_its_published_size_and_two_experts_are_a_group() -> None:
    # Golden: hardware.md section 2, an expert of 9 MiB, 30,532,122,624 parameters; pages of 2 MiB.
    shape = read("qwen3_30b_a3b")
    spec, layout = moe_spec_of(shape, torch.bfloat16), shape.experts(1, 2 * MIB)
    assert spec.norms_heads
    assert (spec.shape.n_heads, spec.shape.n_kv_heads, spec.shape.head_dim) == (32, 4, 128)
    assert spec.shape.total_bytes + layout.n_layers * layout.n_experts * 9 * MIB == 2 * 30_532_122_624
    assert (layout.group_shards, layout.group_bytes) == (2, 18 * MIB)
    assert moe_layout(spec).n_bytes == spec.shape.layer_bytes


def test_mixtral_normalises_no_heads() -> None:
    spec = moe_spec_of(read("mixtral_8x7b"), torch.bfloat16)
    assert not spec.norms_heads
    assert spec.experts is not None
    assert (spec.experts.n_experts, spec.experts.n_active) == (8, 2)
    assert moe_layout(spec).n_bytes == spec.shape.layer_bytes


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss_120b", "qwen3_next_80b_a3b"])
def test_models_with_other_parts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"run it with python -m sim|without biases or scales"):
        moe_spec_of(read(name), torch.bfloat16)


def test_the_kv_cache_at_its_largest_is_what_the_ledger_gives_and_every_group() -> None:
    setting = Setting()
    plan = planned(setting)
    extents, (part,) = plan.extents, setting.open()[0].partitions
    assert plan.mode is LendMode.REMAP
    assert extents.kv.base_bytes == part.kv_pages * 4096
    assert len(extents.groups) == extents.start.most_groups == 16  # four layers, half of 16 experts in pairs
    assert plan.host_bytes == 16 * extents.group.n_bytes == extents.kv_bytes - extents.kv.base_bytes
    assert extents.region_bytes * 2 == part.staging_pages * 4096 == extents.start.buffer_bytes


def test_without_a_policy_that_lends_nothing_is_kept_in_host_memory() -> None:
    assert planned(Setting(policy=Recompute())).host_bytes == 0


@pytest.mark.parametrize(
    ("policy", "changes", "vmm", "weights", "told"),
    [
        (LruExperts(max_offloaded_fraction=0.5), {}, "range", {}, "fetches none on demand"),
        (LENDS_FREELY, {"async_scheduling": True}, "range", {}, "async_scheduling=true: the executor launches no step"),
        (LENDS_FREELY, {"max_num_seqs": 300}, "range", {}, "max_num_seqs=300 exceeds the 256"),
        (LENDS_FREELY, {}, "page", {}, "backend.vmm=page"),
        (LENDS_FREELY, {}, "range", {"other": "x"}, "backend.weights names other; the model is small moe"),
        (LENDS_FREELY, {}, "range", {"small moe": "nowhere"}, "nowhere has no config.json"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(
    policy: Policy, changes: dict[str, int], vmm: str, weights: dict[str, str], told: str
) -> None:
    setting = Setting(policy=policy, serving=replace(SERVING, **changes))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=told) as refused:
        planned(setting, vmm=vmm, weights=weights)
    assert "\n" not in str(refused.value)


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3MoeConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=5, vocab_size=128,
        moe_intermediate_size=48, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, intermediate_size=96,
    )  # fmt: skip
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"its experts are ExpertSpec.n_experts=8"):
        planned(Setting(), weights={"small moe": str(tmp_path)})


def test_an_expert_of_another_size_than_the_model_says_is_refused() -> None:
    shape: MoeShape = replace(read("qwen3_30b_a3b"), gate_up_bytes=2**20)
    with pytest.raises(ValueError, match=r"an expert in torch.bfloat16 has 9437184 bytes"):
        moe_spec_of(shape, torch.bfloat16)
