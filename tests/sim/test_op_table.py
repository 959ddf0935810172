"""Tables put together from operations: a made package first, then the real one where it is installed."""

# pyarrow comes without type information.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bench.fit_roofline import read_machine
from conf.models import CATALOGUE
from conf.roofline_error import main, rows
from policies.types import ModelShape, Work
from sim.compute.op_table import op_table
from sim.compute.table import TableModel
from traces.measured import op_latencies
from traces.measured.op_latencies import OpLatencies

MACHINE = read_machine(CATALOGUE.parent / "hardware" / "h100_sxm.yaml")

needs_package = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs the extra aiconfigurator")


def small(**changes: Any) -> ModelShape:
    heads: dict[str, Any] = {"n_heads": 6, "n_kv_heads": 6, "head_dim": 64}
    sizes: dict[str, Any] = {"n_layers": 2, "hidden": 256, "ffn": 1024, "vocab": 512, "max_context_tokens": 512}
    rest: dict[str, Any] = {"name": "small", "gated_mlp": True, "layer_bytes": 10**6, "total_bytes": 10**7}
    return ModelShape(**{**heads, **sizes, **rest, **changes})


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpLatencies:
    """A GPU whose operations take as long as they have products, in milliseconds a million."""
    gemm: list[dict[str, Any]] = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": m * n * k / 1e6}
        for m in (1, 16, 64, 256, 1024)
        for n in (128, 512, 2048)
        for k in (128, 512, 2048)
    ]
    attention: list[dict[str, Any]] = [
        {
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": "bfloat16",
            "head_dim": 64,
            "num_heads": heads,
            "num_key_value_heads": heads,
            "window_size": 0,
            "batch_size": batch,
        }
        for heads in (4, 8)
        for batch in (1, 4, 16)
    ]
    decode: list[dict[str, Any]] = [
        {**row, "isl": 1, "step": step, "latency": row["num_heads"] * row["batch_size"] * (step + 1) / 1e3}
        for row in attention
        for step in (0, 127, 511)
    ]
    prefill: list[dict[str, Any]] = [
        {**row, "isl": isl, "step": 0, "latency": row["num_heads"] * row["batch_size"] * isl * (isl + 1) / 2e6}
        for row in attention
        for isl in (16, 64, 256)
    ]
    for kind, name, table, version in (
        ("gemm", "gemm_perf", gemm, "0.9.0"),
        ("gemm", "gemm_perf", [{**row, "latency": 1.0} for row in gemm], "0.8.1"),
        ("attention", "generation_attention_perf", decode, "0.10.0"),
        ("attention", "context_attention_perf", prefill, "0.10.0"),
    ):
        path = tmp_path / "toy" / kind / "vllm" / version / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(table), path)
    monkeypatch.setattr(op_latencies, "data_folder", lambda: tmp_path)
    return OpLatencies.of("toy")


def test_the_newest_version_is_read_and_sizes_between_measured_ones_follow_their_product(ops: OpLatencies) -> None:
    points = ops.gemm([(1536, 300)])[1536, 300]
    for tokens, ns in points.items():
        assert ns == pytest.approx(tokens * 1536 * 300, rel=1e-6)


def test_a_size_beyond_all_that_were_measured_is_cut_into_pieces(ops: OpLatencies) -> None:
    assert ops.gemm([(8192, 128)])[8192, 128][16] == pytest.approx(16 * 8192 * 128, rel=1e-6)


def test_a_number_of_heads_between_measured_ones_is_linear(ops: OpLatencies) -> None:
    assert ops.decode(small())[4][4 * 128] == 6 * 4 * 128 * 1000


@pytest.mark.parametrize("n_heads", [2, 16])
def test_heads_that_were_not_measured_are_told(ops: OpLatencies, n_heads: int) -> None:
    with pytest.raises(ValueError, match=f"no attention of {n_heads} heads of 64"):
        ops.decode(small(n_heads=n_heads, n_kv_heads=n_heads))


def test_a_layer_takes_its_gemms_its_attention_and_the_small_kernels(ops: OpLatencies) -> None:
    shape = small()
    model = TableModel(op_table(shape, MACHINE, ops))
    products = 256 * 3 * 384 + 384 * 256 + 256 * 2048 + 1024 * 256
    small_ns = MACHINE.small_ops_s * 1e9
    decode_ns = model.layer_ns(Work(0, 0, 0, 4, 4 * 128, 4))
    assert decode_ns == pytest.approx(4 * products + 6 * 4 * 128 * 1000 + small_ns, rel=0.01)
    prefill_ns = model.layer_ns(Work(64, 1, 64 * 65 // 2, 0, 0, 1))
    assert prefill_ns == pytest.approx(64 * products + 6 * 64 * 65 / 2 + small_ns, rel=0.01)


def test_the_same_steps_take_the_same_time_however_they_are_asked_for(ops: OpLatencies) -> None:
    model = TableModel(op_table(small(), MACHINE, ops))
    first = Work(0, 0, 0, 3, 300, 3)
    each = [model.layer_ns(Work(0, 0, 0, 3, 300 + 3 * step, 3)) for step in range(20)]
    assert list(model.repeated_layer_ns(first, 20)) == each


def test_a_gpu_and_a_package_that_are_not_there_are_told(
    ops: OpLatencies, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="no such GPU; it has toy"):
        OpLatencies.of("tpu")
    monkeypatch.undo()

    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(op_latencies, "find_spec", nothing)
    with pytest.raises(ValueError, match=r'needs the package aiconfigurator-core; pip install "hbmlab\[aiconf'):
        OpLatencies.of("h100_sxm")
    assert ops.gpu == "toy"
    assert capsys.readouterr().out == ""


@needs_package
@pytest.mark.parametrize(("hardware", "gpu"), [("h100_sxm", "h100_sxm"), ("h200_sxm", "h200_sxm")])
@pytest.mark.parametrize("name", ["opt_13b", "llama_3_8b", "qwen3_30b_a3b"])
def test_the_roofline_is_as_far_from_the_operations_as_its_fits_say(name: str, hardware: str, gpu: str) -> None:
    # hardware.md section 3.1: 5.8 and 6.2 % for GEMMs, 7.5 to 8 % for attention; experts 10 %.
    errors = [abs(row.error) for row in rows(name, hardware, gpu)]
    assert sum(errors) / len(errors) < 0.12


@needs_package
def test_the_command_prints_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models", "opt_13b", "--rows"]) == 0
    told: Iterator[str] = iter(capsys.readouterr().out.splitlines())
    assert next(told) == "roofline of h100_sxm against operations of h100_sxm: error of a layer"
