from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from bench.fit_roofline import read_machine
from policies.moe import MoeShape
from policies.types import NS_PER_S, Work
from sim.compute.moe import MoeRoofline, Ranks
from sim.compute.roofline import Roofline
from sim.compute.routing import uniform
from tests.sim.test_moe_model_files import read

CONF = Path(__file__).parents[2] / "conf"
SHAPE = read("qwen3_next_80b_a3b")


def read_ranks(name: str) -> Ranks:
    values: Any = OmegaConf.to_container(OmegaConf.load(CONF / "ranks" / f"{name}.yaml"))
    return Ranks(**values)


def model(hardware: str, ranks: str, shape: MoeShape = SHAPE) -> MoeRoofline:
    machine = read_machine(CONF / "hardware" / f"{hardware}.yaml")
    assert isinstance(machine, Roofline)
    return MoeRoofline(machine, shape, read_ranks(ranks), uniform(shape.n_experts, shape.n_active))


def decode(n_seqs: int, n_context: int) -> Work:
    return Work(
        n_prefill_tokens=0,
        n_prefill_seqs=0,
        prefill_pairs=0,
        n_decode_seqs=n_seqs,
        decode_context_tokens=n_seqs * n_context,
        n_sampled=n_seqs,
    )


def prefill(n_tokens: int) -> Work:
    pairs = n_tokens * (n_tokens + 1) // 2
    return Work(
        n_prefill_tokens=n_tokens,
        n_prefill_seqs=1,
        prefill_pairs=pairs,
        n_decode_seqs=0,
        decode_context_tokens=0,
        n_sampled=1,
    )


@pytest.mark.parametrize(("n_tokens", "measured_us"), [(64, 233), (256, 283), (1024, 356), (8192, 911)])
def test_grouped_gemms_take_what_was_measured_on_an_h100(n_tokens: int, measured_us: float) -> None:
    # Golden: hardware.md 3.1, vLLM's kernel, H100 SXM, TP2, experts of 2048 x 512, top 8 of 256.
    experts = replace(SHAPE, n_experts=256, n_active=8)
    times = model("h100_sxm", "h100_nvl_x2", experts).layers(prefill(n_tokens))[0]
    assert abs((times.gate_up_ns + times.down_ns) / 1000 / measured_us - 1) < 0.06


@pytest.mark.parametrize(
    ("ranks", "n_bytes", "measured_us"),
    [
        ("h100_nvl_x2", 262_144, 4 + (32 - 4) / 2),
        ("h100_nvl_x2", 8_388_608, 4 + (892 - 4) / 2),
        ("h100_nvl_x2", 33_554_432, 4 + (3500 - 4) / 2),
        ("h200_nvl_x4", 262_144, 10.5),
        ("h200_nvl_x4", 8_388_608, 94),
    ],
)
def test_all_reduces_take_what_was_measured(ranks: str, n_bytes: int, measured_us: float) -> None:
    # Golden: hardware.md 3.1. Two L40S behind PCIe 4 stand in for two H100 without NVLink, whose PCIe 5 moves the bytes
    # in half the time; the 4 us that come with every all-reduce stay.
    hardware = "h100_nvl" if "h100" in ranks else "h200_nvl"
    times = model(hardware, ranks).layers(prefill(n_bytes // (2 * SHAPE.hidden)))[0]
    assert abs(times.reduce_ns / 1000 / measured_us - 1) < 0.03


def test_more_than_half_of_a_chunk_of_8192_tokens_on_two_h100_are_all_reduces() -> None:
    # Golden: hardware.md 5.6: about 430 ms, of which about 340 in all-reduces, at PCIe 4's rate; at PCIe 5's half of
    # these.
    layers = model("h100_nvl", "h100_nvl_x2").layers(prefill(8192))
    reduces_ms = sum(2 * times.reduce_ns for times in layers) / 1e6
    all_ms = sum(times.all_ns for times in layers) / 1e6
    assert abs(reduces_ms / (340 / 2) - 1) < 0.02
    assert abs(all_ms / (430 - 340 / 2) - 1) < 0.12


def test_three_of_four_layers_have_a_delta_net_whose_time_does_not_grow_with_the_context() -> None:
    made = model("h100_nvl", "h100_nvl_x2")
    short, long = made.layers(decode(48, 1000)), made.layers(decode(48, 100_000))
    grown = [layer for layer, (a, b) in enumerate(zip(short, long, strict=True)) if b.mixer_ns > a.mixer_ns]
    assert grown == list(range(3, 48, 4))


def test_a_dense_layer_has_no_experts() -> None:
    deepseek = read("deepseek_v3")
    layers = model("h200_nvl", "h200_nvl_x4", deepseek).layers(decode(1, 1000))
    assert len({id(times) for times in layers[:3]}) == 1
    assert layers[2] != layers[3]


def test_one_rank_has_nothing_to_reduce() -> None:
    alone = replace(read_ranks("h100_nvl_x2"), n_ranks=1)
    machine = read_machine(CONF / "hardware" / "h100_nvl.yaml")
    made = MoeRoofline(machine, SHAPE, alone, uniform(512, 10))
    assert all(times.reduce_ns == 0 for times in made.layers(decode(4, 100)))
    assert made.head_ns(decode(4, 100)) < NS_PER_S


def test_ranks_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks: n_per_link=0"):
        replace(read_ranks("h100_nvl_x2"), n_per_link=0)


def test_every_number_of_a_file_of_ranks_names_its_source() -> None:
    for path in (CONF / "ranks").glob("*.yaml"):
        for line in path.read_text().splitlines():
            assert not line.strip() or line.startswith(("#", "n_ranks:")) or "  # " in line, f"{path.name}: {line}"
