"""The catalogue holds every profile of the reference texts, where those lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from conf.models import named

ROOT = Path(__file__).parents[2]
PROFILES = ROOT.parent / "shared" / "reference" / "profiles.json"

FILES = {"gh200_96": "gh200_paper", "h100_nvl94": "h100_nvl"}
"""Profiles whose file has another name."""

MEASURED_BY_US = {
    ("h200_nvl", "h2d"): 0.01,
    ("h200_nvl", "d2h"): 0.01,
    ("h100_nvl94", "h2d"): 0.11,
    ("h100_nvl94", "d2h"): 0.11,
}
"""Where the file has an H200's measured link in place of the profile's round number: so far apart at most. That of the
H100 NVL is inferred from VAMP's figure, contention included: see docs/decisions.md."""


@pytest.fixture(scope="module")
def profiles() -> dict[str, Any]:
    if not PROFILES.exists():
        pytest.skip("the reference texts are not beside the checkout")
    return json.loads(PROFILES.read_text())


def test_every_machine_of_the_profiles_is_in_the_catalogue_with_its_numbers(profiles: dict[str, Any]) -> None:
    for name, told in profiles["hardware"].items():
        file: Any = OmegaConf.load(ROOT / "conf" / "hardware" / f"{FILES.get(name, name)}.yaml")
        pairs = {
            "hbm_bytes": file.hbm_bytes,
            "hbm_bw": file.hbm_bytes_per_s,
            "bf16": file.flops_per_s,
            "h2d": file.link.h2d_bytes_per_s,
            "d2h": file.link.d2h_bytes_per_s,
            "unified": file.get("unified"),
        }
        for key, value in pairs.items():
            within = MEASURED_BY_US.get((name, key), 1e-9)
            assert key not in told or value == pytest.approx(told[key], rel=within), (name, key)
        both_ways = 2 * told["dup_each"] if "dup_each" in told else told.get("dup_h2d", 0) + told.get("dup_d2h", 0)
        assert not both_ways or file.link.joint_bytes_per_s == pytest.approx(both_ways), name


def test_every_fit_of_the_profiles_is_in_the_catalogue(profiles: dict[str, Any]) -> None:
    for name, told in profiles["hardware"].items():
        of: Any = OmegaConf.load(ROOT / "conf" / "hardware" / f"{FILES.get(name, name)}.yaml").roofline
        gemm, attention = told.get("gemm"), told.get("attn")
        if gemm is not None:
            fitted = (of.gemm_s, of.gemm_bandwidth_share, of.gemm_flops_share)
            assert fitted == pytest.approx((gemm["t0"], gemm["eb"], gemm["ef"])), name
        if attention is not None:
            fitted = (of.mha_fixed_s, of.mha_sequence_s, of.mha_bandwidth_share)
            assert fitted == pytest.approx((attention["a"], attention["c"], attention["e"])), name


def test_every_model_of_the_profiles_is_in_the_catalogue_with_its_sizes(profiles: dict[str, Any]) -> None:
    for name, told in profiles["models"].items():
        model = named(name.replace("-", "_").replace(".", "_"))
        shape, moe = model.shape, model.moe
        assert (shape.n_layers, shape.hidden, shape.n_heads) == (told["layers"], told["hidden"], told["heads"]), name
        if moe is None:
            sizes = shape.n_kv_heads, shape.head_dim, shape.ffn, shape.vocab
            assert sizes == (told["kv_heads"], told["head_dim"], told["ffn"], told["vocab"]), name
            assert shape.layer_bytes == 2 * told["layer_params"], name
            assert shape.total_bytes == 2 * told["total_params"], name
            assert shape.kv_bytes_per_token == told["layers"] * told["kv_bytes_tok_layer"], name
        else:
            assert (moe.n_experts, moe.n_active) == (told["experts"], told["topk"]), name
            assert (moe.expert_params, moe.total_params) == (told["expert_params"], told["total_params"]), name
            assert moe.kv_bytes_per_layer == told["kv_bytes_tok_layer"], name
