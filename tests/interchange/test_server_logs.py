from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from conf.beside import main as compare
from conf.cli import Refused
from tests.conftest import REPOSITORY
from tests.page.runs import run
from traces.interchange.server_logs import as_run, read_server_log
from traces.results.metrics import summary_of

# As vllm/benchmarks/serve.py leaves it with --save-result --save-detailed; the third request failed.
BENCH: dict[str, Any] = {
    "model_id": "m",
    "request_rate": 2.0,
    "duration": 3.0,
    "start_times": [100.0, 100.5, 101.0],
    "input_lens": [7, 8, 9],
    "output_lens": [3, 1, 0],
    "ttfts": [0.25, 0.5, 0.0],
    "itls": [[0.1, 0.3], [], []],
    "errors": ["", "", "Traceback"],
}

# From aiperf's docs/tutorials/working-with-profile-exports.md, shortened: one served, one cancelled.
AIPERF: list[dict[str, Any]] = [
    {
        "metadata": {"request_start_ns": 1759813207532900363, "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "time_to_first_token": {"value": 255.88656799999998, "unit": "ms"},
            "request_latency": {"value": 297.52522799999997, "unit": "ms"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
            "inter_chunk_latency": {
                "value": [4.898437, 5.316006, 4.801489, 5.674918, 4.811467, 5.097998, 5.504797, 5.533548],
                "unit": "ms",
            },
            "inter_token_latency": {"value": 5.2048325, "unit": "ms"},
        },
        "error": None,
    },
    {
        "metadata": {"request_start_ns": 1759813207532900400, "benchmark_phase": "profiling"},
        "metrics": {"error_isl": {"value": 550, "unit": "tokens"}},
        "error": {"code": 499, "type": "RequestCancellationError"},
    },
]


def written(tmp_path: Path, *documents: object) -> Path:
    path = tmp_path / "log.json"
    path.write_text(
        "\n".join(document if isinstance(document, str) else json.dumps(document) for document in documents)
    )
    return path


def summed(tmp_path: Path, *documents: object) -> Any:
    as_run(read_server_log(written(tmp_path, *documents)), tmp_path / "run", "server")
    return summary_of(tmp_path / "run").total


def test_a_log_of_vllms_benchmark_is_summed_up_like_a_run(tmp_path: Path) -> None:
    total = summed(tmp_path, BENCH)
    assert (total.n_finished, total.n_dropped, total.n_unfinished) == (2, 1, 0)
    assert (total.ttft.p50_ns, total.ttft.p99_ns) == (250_000_000, 500_000_000)
    assert (total.gap.n, total.gap.p50_ns, total.gap.p99_ns) == (2, 100_000_000, 300_000_000)
    assert (total.mean_gap.p50_ns, total.max_gap.p50_ns) == (200_000_000, 300_000_000)
    assert total.output_tokens_per_s == pytest.approx(4 / 1.0)  # 3 + 1 tokens, from 100.0 s to 101.0 s


def test_a_log_of_aiperf_is_summed_up_like_a_run(tmp_path: Path) -> None:
    total = summed(tmp_path, *AIPERF)
    assert (total.n_finished, total.n_dropped) == (1, 1)
    assert total.ttft.p50_ns == 255_886_568
    assert total.mean_gap.p50_ns == 5_204_832  # its inter_token_latency, rounded down
    assert (total.gap.n, total.max_gap.p50_ns) == (8, 5_674_918)


def test_a_log_with_mean_gaps_alone_has_no_figure_over_gaps(tmp_path: Path) -> None:
    line = {"input_toks": 5, "output_toks": 3, "first_token_ts": 10.5, "last_token_ts": 11.5}
    # The clocks are 90 s apart by the first request, so the second came 0.25 s before it was queued.
    total = summed(
        tmp_path,
        {**line, "arrival_time": 100.0, "queued_ts": 10.0},
        {**line, "arrival_time": 100.0, "queued_ts": 10.25},
    )
    assert (total.ttft.p50_ns, total.ttft.p99_ns) == (500_000_000, 500_000_000)
    assert total.mean_gap.p50_ns == 500_000_000
    assert total.gap.p50_ns is None
    assert total.max_gap.p50_ns is None


def test_a_real_vllm_run_has_its_own_mean_ttft(tmp_path: Path) -> None:
    path = REPOSITORY.parent / "shared" / "data" / "groundtruth" / "rtx4090_llama31_8b" / "requests.jsonl"
    if not path.exists():
        pytest.skip("../shared/data is not here")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    as_run(read_server_log(path), tmp_path, "vllm")
    total = summary_of(tmp_path).total
    assert total.n_finished == len(records) == 300
    apart_s = min(each["queued_ts"] - each["arrival_time"] for each in records)
    expected = fmean(each["first_token_ts"] - each["arrival_time"] - apart_s for each in records)
    assert total.ttft.mean_ns == pytest.approx(expected * 1e9)


NO_REQUESTS: dict[str, list[object]] = {
    key: [] for key in ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")
}
UNUSABLE: list[tuple[list[object], str]] = [
    (["{}"], "of no known format"),
    ([""], "of no known format"),
    (["not json"], ":1: no JSON object"),
    ([{**BENCH, "ttfts": [0.1]}], "are not equally long"),
    ([{key: value for key, value in BENCH.items() if key != "start_times"}], "has no start_times"),
    ([{**BENCH, **NO_REQUESTS}], "holds no request"),
    ([{"metadata": {}, "metrics": {}}], "a request lacks 'request_start_ns'"),
    ([{"first_token_ts": 1.0}], "a request lacks"),
]


@pytest.mark.parametrize(("documents", "what"), UNUSABLE)
def test_a_log_that_cannot_be_used_is_one_line(tmp_path: Path, documents: list[object], what: str) -> None:
    path = written(tmp_path, *documents)
    with pytest.raises(Refused) as refusal:
        compare([str(path)])
    assert what in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_a_server_stands_beside_a_simulated_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, BENCH)
    run(tmp_path / "run")
    page = tmp_path / "page.html"
    assert compare([str(log), str(tmp_path / "run"), str(tmp_path / "run"), "--out", str(page)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("c1, alpaca, 2 requests/s (second lines: against log)")
    assert [line.split()[0] for line in told.splitlines() if line.startswith(("log", "mirage"))] == [
        "log",
        "mirage",
        "mirage",
    ]
    assert "mirage (2)" in told
    assert "measured, log of vllm bench serve" in told
    assert "log" in page.read_text(encoding="utf-8")
