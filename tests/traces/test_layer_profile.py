from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.servers import write_csv, write_profile
from traces.measured.layer_profile import (
    AttentionTiming,
    ExpertTiming,
    UnevenTiming,
    is_layer_profile,
    read_layer_profile,
)


@pytest.fixture
def at(tmp_path: Path) -> Path:
    write_profile(tmp_path)
    return tmp_path / "layer_profile" / "tp1"


def test_microseconds_are_nanoseconds_by_layer_and_size(at: Path) -> None:
    profile = read_layer_profile(at.parent, 1)
    assert is_layer_profile(at.parent)
    assert profile.per_token["qkv_proj"] == [(1, 10_000), (128, 10_000)]
    assert profile.per_sequence["lm_head"] == [(1, 32_000), (8, 32_000)]
    assert AttentionTiming(0, 0, 2, 64, 18_000) in profile.attention
    assert AttentionTiming(32, 2 * 64 + 32, 0, 0, 18_000) in profile.attention
    assert profile.about["gpu"] == "a made-up GPU"
    assert (profile.experts, profile.uneven) == ([], [])


def test_columns_stand_anywhere_and_more_of_them_do_not_matter(at: Path) -> None:
    write_csv(at / "dense.csv", "time_us,note,tokens,layer", [(1.5, "x", 1, "down_proj"), (2.5, "y", 1, "down_proj")])
    assert read_layer_profile(at.parent, 1).per_token == {"down_proj": [(1, 2500)]}, "measured again: the last counts"


def test_later_profiles_tell_the_mean_keys_of_a_prompt_token_and_the_kernel(at: Path) -> None:
    columns = "layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us"
    rows = [
        ("attention", 32, 80, 0, 0, 1, 18),
        ("indexer", 32, 80, 0, 0, 1, 2),
        ("attention", 0, 0, 1, 16, 1, 5),
        ("attention", 0, 0, 1, 16, 4, 50),
    ]
    write_csv(at / "attention.csv", columns, rows)
    assert list(read_layer_profile(at.parent, 1).attention) == [
        AttentionTiming(0, 0, 1, 16, 5000),
        AttentionTiming(32, 160, 0, 0, 20_000),
    ], "two kernels one after another; no speculative decoding"


def test_experts_and_uneven_contexts_are_read_where_they_are(at: Path) -> None:
    write_csv(at / "moe.csv", "ep,tokens,activated_experts,time_us", [(2, 4, 8, 30.25)])
    write_csv(at / "skew.csv", "n,pc,t_mean_us,t_max_us,t_skew_us,alpha", [(4, 0, 10, 20, 12, 0.2)])
    profile = read_layer_profile(at.parent, 1)
    assert profile.experts == [ExpertTiming(2, 4, 8, 30_250)]
    assert profile.uneven == [UnevenTiming(4, 0, 10_000, 20_000, 12_000)]


def test_uneven_contexts_of_the_later_form_are_left_out(at: Path) -> None:
    write_csv(at / "skew.csv", "layer,requests_json,t_skew_us", [("attention", "[]", 12)])
    assert read_layer_profile(at.parent, 1).uneven == []


def replace(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(at: Path) -> None:
        path = at / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no table": (lambda at: (at / "attention.csv").unlink(), "attention.csv: No such file"),
    "no rows": (lambda at: (at / "dense.csv").write_text("layer,tokens,time_us\n"), "dense.csv has no rows"),
    "empty": (lambda at: (at / "dense.csv").write_text(""), "dense.csv has no rows"),
    "no column": (replace("dense.csv", "time_us", "time_ms"), "dense.csv has no column time_us"),
    "a text": (replace("dense.csv", "1,10", "1,fast"), "dense.csv:6: time_us 'fast' is not a number"),
    "negative": (replace("dense.csv", "1,10", "1,-10"), "dense.csv:6: time_us '-10' is negative"),
    "not finite": (replace("dense.csv", "1,10", "1,nan"), "dense.csv:6: time_us 'nan' is not a number"),
    "half a token": (replace("dense.csv", "qkv_proj,1,", "qkv_proj,1.5,"), "tokens '1.5' is not a whole number"),
    "no token": (replace("dense.csv", "qkv_proj,1,", "qkv_proj,0,"), "tokens=0 must be at least 1"),
    "a field more": (replace("dense.csv", "1,10", "1,10,3"), "dense.csv:6: 4 fields, not 3"),
    "nothing runs": (replace("attention.csv", "0,0,1,16", "0,0,0,0"), "neither prefill_chunk nor n_decode"),
    "decodes of nothing": (replace("attention.csv", "0,0,1,16", "0,0,1,0"), "n_decode=1 with kv_decode=0"),
    "no keys": (replace("attention.csv", "kv_prefill", "kv"), "neither kv_prefill nor prefill_key"),
    "a hybrid model": (lambda at: (at / "linear_attention.csv").touch(), "a hybrid model's profile is not read"),
    "no YAML": (lambda at: (at.parent / "meta.yaml").write_text("gpu: [\n"), "meta.yaml: "),
    "no text": (lambda at: (at / "dense.csv").write_bytes(b"layer,\xff\n"), "dense.csv:1: not UTF-8 text"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_profile_is_refused_in_one_line(fault: str, at: Path) -> None:
    change, message = FAULTS[fault]
    change(at)
    with pytest.raises(ValueError, match=r"(?s).*") as refused:
        read_layer_profile(at.parent, 1)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_degree_of_parallelism_that_was_not_profiled_is_refused(at: Path) -> None:
    with pytest.raises(ValueError, match=r"tp4 is not there \(measured: tp1\); profile tensor_parallel_size=4"):
        read_layer_profile(at.parent, 4)
