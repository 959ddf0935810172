"""A mixture of experts as the equal layers that the loop knows, and its compute times."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fit_roofline import read_machine
from conf.models import CATALOGUE, named
from policies.even_layers import even_layers
from policies.types import Mixture, Work
from sim.compute.roofline import ModelRoofline, gemm_sizes
from sim.compute.routing import uniform

MACHINE = read_machine(CATALOGUE.parent / "hardware" / "h100_sxm.yaml")
MIXTURES = sorted(path.stem for path in (CATALOGUE / "moe").glob("*.yaml"))


@pytest.mark.parametrize("name", MIXTURES)
def test_nothing_of_the_weights_is_lost(name: str) -> None:
    moe = named(name).moe
    assert moe is not None
    shape = even_layers(moe)
    experts = moe.n_moe_layers * moe.n_experts
    expert_bytes = moe.gate_up_bytes + moe.down_bytes
    rest = moe.total_params - experts * moe.expert_params
    assert shape.total_bytes == experts * expert_bytes + moe.dtype_bytes * rest
    lost = shape.total_bytes - shape.n_layers * shape.layer_bytes - moe.dtype_bytes * moe.other_params
    assert 0 <= lost < shape.n_layers  # a byte a layer, rounded down
    assert shape.kv_bytes_per_token == moe.kv_bytes_per_token(1)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_parameters_that_a_token_meets_are_those_of_the_model(name: str) -> None:
    model = named(name)
    moe, mixture = model.moe, model.shape.mixture
    assert moe is not None
    assert mixture is not None
    of_layer = mixture.mixer_params + mixture.shared_params
    of_layer += mixture.expert_share * mixture.n_active * mixture.expert_params
    outside = moe.other_params + moe.n_layers * moe.norm_params
    assert model.shape.n_layers * of_layer + outside == pytest.approx(moe.active_params, rel=1e-6)


def decode(n_seqs: int) -> Work:
    return Work(0, 0, 0, n_seqs, n_seqs * 512, n_seqs)


@given(n_seqs=st.integers(1, 256))
def test_a_decode_step_reads_the_experts_that_its_tokens_use(n_seqs: int) -> None:
    shape = named("qwen3_30b_a3b").shape
    mixture = shape.mixture
    assert mixture is not None
    without = ModelRoofline(MACHINE, replace(shape, mixture=replace(mixture, expert_bytes=0, expert_params=0)))
    layer_ns = ModelRoofline(MACHINE, shape).layer_ns(decode(n_seqs)) - without.layer_ns(decode(n_seqs))
    read = uniform(mixture.n_experts, mixture.n_active).n_distinct(n_seqs) * mixture.expert_bytes
    read_ns = read / (MACHINE.hbm_bytes_per_s * MACHINE.moe_bandwidth_share) * 1e9
    assert layer_ns == pytest.approx(read_ns, abs=2)


def test_a_long_prompt_is_bound_by_the_operations_of_its_active_experts() -> None:
    # Arithmetic: 2 operations for each parameter of two experts and each of 16384 tokens, at 0.48 of 989e12/s: 24 ms.
    shape = named("mixtral_8x7b").shape
    mixture = shape.mixture
    assert mixture is not None
    n = 16384
    layer_ns = ModelRoofline(MACHINE, shape).layer_ns(Work(n, 1, n * (n + 1) // 2, 0, 0, 1))
    experts_ns = 2 * 2 * mixture.expert_params * n / (0.48 * 989e12) * 1e9
    rest = ModelRoofline(MACHINE, replace(shape, mixture=replace(mixture, expert_bytes=0, expert_params=0)))
    assert layer_ns - rest.layer_ns(Work(n, 1, n * (n + 1) // 2, 0, 0, 1)) == pytest.approx(experts_ns, rel=1e-6)


def test_a_mixture_that_cannot_be_is_refused() -> None:
    mixture = named("mixtral_8x7b").shape.mixture
    assert mixture is not None
    with pytest.raises(ValueError, match=r"n_active=9 is outside 1\.\.8 experts"):
        Mixture(**{**asdict(mixture), "n_active": 9})
    with pytest.raises(ValueError, match=r"expert_share=0 is outside \(0, 1\]"):
        Mixture(**{**asdict(mixture), "expert_share": 0})


def test_the_gemms_of_a_dense_layer_have_its_parameters() -> None:
    for name in ("opt_13b", "llama_3_8b", "qwen3_8b"):
        shape = named(name).shape
        weights = sum(n * k for n, k in gemm_sizes(shape))
        assert weights == pytest.approx(shape.layer_bytes / shape.dtype_bytes, rel=3e-4)  # norms and biases
