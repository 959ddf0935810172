from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.page.runs import run
from traces.__main__ import COMMANDS
from traces.cli import dispatch
from traces.interchange.prometheus import exposition
from traces.results.metrics import Spread, summarise

# Names of vLLM V1: vllm/v1/metrics/loggers.py. Parsed counters have lost their _total.
NAMES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:num_preemptions",
    "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_hits", "vllm:request_success",
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_decode_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
    "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_inference_time_seconds",
    "vllm:request_params_max_tokens", "vllm:iteration_tokens_total",
}  # fmt: skip


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_prometheus_reads_every_metric_with_vllms_name_and_labels(tmp_path: Path) -> None:
    families = parsed(exposition(run(tmp_path)).decode())
    assert families.keys() == NAMES
    for family in families.values():
        assert {sample.labels["model_name"] for sample in family.samples} == {"left", "right"}
        assert {sample.labels["engine"] for sample in family.samples} == {"0"}


def test_the_buckets_of_a_histogram_grow_and_its_sum_and_count_are_those_of_the_figures(tmp_path: Path) -> None:
    tables = run(tmp_path)
    families, summary = parsed(exposition(tables).decode()), summarise(tables)
    for name, figure in (
        ("vllm:time_to_first_token_seconds", "ttft"),
        ("vllm:inter_token_latency_seconds", "gap"),
        ("vllm:request_time_per_output_token_seconds", "mean_gap"),
    ):
        for index, model in enumerate(("left", "right")):
            own = [sample for sample in families[name].samples if sample.labels["model_name"] == model]
            buckets = [sample.value for sample in own if sample.name.endswith("_bucket")]
            (total,) = [sample.value for sample in own if sample.name.endswith("_sum")]
            (count,) = [sample.value for sample in own if sample.name.endswith("_count")]
            expected: Spread = getattr(summary.by_model[index], figure)
            assert expected.mean_ns is not None
            assert buckets == sorted(buckets)
            assert buckets[-1] == count == expected.n
            assert total == pytest.approx(expected.mean_ns * expected.n / 1e9)


def test_a_value_at_a_bound_is_in_the_bucket_of_this_bound(tmp_path: Path) -> None:
    # Every first token comes 0.5 s after its arrival, and 0.5 is one of vLLM's bounds.
    families = parsed(exposition(run(tmp_path)).decode())
    below = {
        sample.labels["le"]: sample.value
        for sample in families["vllm:time_to_first_token_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["model_name"] == "left"
    }
    assert (below["0.25"], below["0.5"], below["+Inf"]) == (0, 60, 60)


def test_what_is_left_at_the_end_still_waits(tmp_path: Path) -> None:
    families = parsed(exposition(run(tmp_path, n_left=3)).decode())
    waiting = {each.labels["model_name"]: each.value for each in families["vllm:num_requests_waiting"].samples}
    assert waiting == {"left": 3, "right": 0}


def test_export_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run")
    assert dispatch("python -m traces", COMMANDS, ["export", str(tmp_path / "run"), "--to", "prometheus"]) == 0
    text = capsys.readouterr().out
    file = tmp_path / "metrics.txt"
    command = ["export", str(tmp_path / "run"), "--to", "prometheus", "--out", str(file)]
    assert dispatch("python -m traces", COMMANDS, command) == 0
    assert file.read_text() == text
    assert dispatch("python -m traces", COMMANDS, ["export", str(tmp_path), "--to", "prometheus"]) == 2
