from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.types import NS_PER_S
from tests.sim.servers import logged, meta, write_csv, write_run, write_trace
from traces.measured.server_log import Sample, read_server_run
from traces.measured.server_settings import FULL, NO_GRAPHS, PIECEWISE, read_settings

GROUND = Path(__file__).parents[3] / "shared" / "data" / "groundtruth" / "rtx4090_llama31_8b"
LINES = [logged(0, 32, 3, 1.5, 1.6, 1.8), logged(1, 16, 1, 2.5, 2.75, 2.75)]


def resolved(**sections: Any) -> dict[str, Any]:
    its = meta()
    return {**its, "resolved_config": {**its["resolved_config"], **sections}}


def test_times_count_from_the_first_arrival_on_one_clock(tmp_path: Path) -> None:
    run = read_server_run(write_run(tmp_path, LINES))
    assert [(its.arrival_ns, its.first_token_ns, its.last_token_ns) for its in run.requests] == [
        (0, NS_PER_S // 10, 3 * NS_PER_S // 10),
        (NS_PER_S, NS_PER_S * 5 // 4, NS_PER_S * 5 // 4),
    ]
    assert run.samples == []
    assert [arrival.n_output_tokens for arrival in run.arrivals()] == [3, 1]


def test_a_request_that_waited_to_be_queued_does_not_set_the_clock(tmp_path: Path) -> None:
    late = {**LINES[1], "queued_ts": LINES[1]["queued_ts"] + 0.2}
    assert read_server_run(write_run(tmp_path, [LINES[0], late])).requests[1].first_token_ns == NS_PER_S * 5 // 4


def test_arrivals_on_the_engines_clock_are_taken_as_they_are(tmp_path: Path) -> None:
    lines = [{**line, "arrival_time": line["queued_ts"]} for line in LINES]
    assert read_server_run(write_run(tmp_path, lines)).requests[1].arrival_ns == NS_PER_S


def test_requests_that_are_out_of_order_arrive_in_order(tmp_path: Path) -> None:
    run = read_server_run(write_run(tmp_path, LINES[::-1]))
    assert [arrival.request.request_id for arrival in run.arrivals()] == [1, 0]
    assert run.requests[1].arrival_ns == 0


def test_without_arrival_times_those_of_the_trace_hold(tmp_path: Path) -> None:
    write_run(tmp_path, [{**line, "arrival_time": None} for line in LINES])
    write_trace(tmp_path, [range(32), range(16)], [3, 1])
    run = read_server_run(tmp_path)
    assert [its.arrival_ns for its in run.requests] == [0, NS_PER_S]
    assert run.requests[0].prompt is not None
    assert run.requests[1].prompt == run.requests[0].prompt[:1], "the first 16 tokens are the same"


def test_samples_are_dated_by_when_the_server_started(tmp_path: Path) -> None:
    write_run(tmp_path, LINES)
    rows = [(1.0, 0, 2, 1, 12.5, 7), (2.0, 0, 1, 0, 0, 7)]
    write_csv(tmp_path / "timeseries.csv", "t,gen_throughput,running,waiting,kv_cache_pct,new_column", rows)
    assert list(read_server_run(tmp_path).samples) == [
        Sample(at_ns=-NS_PER_S // 2, n_running=2, n_waiting=1, kv_share=0.125),
        Sample(at_ns=NS_PER_S // 2, n_running=1, n_waiting=0, kv_share=0.0),
    ], "started at 10:00:00, the first request at 10:00:01.5"


def test_what_was_not_kept_is_vllms_default(tmp_path: Path) -> None:
    its = resolved(compilation_config={}, scheduler_config={})
    write_run(tmp_path, LINES, its)
    settings = read_settings(tmp_path)
    assert (settings.async_scheduling, settings.chunked_prefill, settings.reserve_full_isl) == (True, True, True)
    assert (settings.decode_graphs, settings.other_graphs) == (FULL, PIECEWISE)
    assert settings.graph_sizes == (1, 2, 4, 8, 16), "twice the 8 requests that may run"
    assert (settings.n_ranks, settings.n_engines) == (1, 1)
    write_run(tmp_path, LINES, {**its, "vllm_version": "0.15.1"})
    assert not read_settings(tmp_path).reserve_full_isl


@pytest.mark.parametrize(
    ("written", "decodes", "others"),
    [([2, 1], FULL, PIECEWISE), ("CUDAGraphMode.FULL_DECODE_ONLY", FULL, NO_GRAPHS), (0, NO_GRAPHS, NO_GRAPHS)],
)
def test_modes_of_graphs_are_read_as_vllm_writes_them(
    written: object, decodes: int, others: int, tmp_path: Path
) -> None:
    write_run(tmp_path, LINES, resolved(compilation_config={"cudagraph_mode": written}))
    settings = read_settings(tmp_path)
    assert (settings.decode_graphs, settings.other_graphs) == (decodes, others)
    assert bool(settings.graph_sizes) is bool(decodes)


def test_the_link_between_gpus_is_that_of_the_simulators_configuration(tmp_path: Path) -> None:
    write_run(tmp_path, LINES)
    assert read_settings(tmp_path).link_bytes_per_s is None
    (tmp_path / "config.json").write_text('{"link_bw": 16, "link_latency": [1000, 2000]}')
    settings = read_settings(tmp_path)
    assert (settings.link_bytes_per_s, settings.link_latency_ns) == (16 * 10**9, 1000)


def line(**changes: Any) -> list[dict[str, Any]]:
    return [LINES[0], {**LINES[1], **changes}]


REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no blocks": (LINES, {**meta(), "kv_cache": {}}, "kv_cache.num_gpu_blocks is not there"),
    "no length": (LINES, resolved(model_config={}), "max_model_len is not there"),
    "a text for a number": (
        LINES,
        {**meta(), "kv_cache": {"num_gpu_blocks": "many", "block_size": 16}},
        "kv_cache.num_gpu_blocks is 'many', it must be a whole number of 2 to 67108864",
    ),
    "speculative": (LINES, resolved(speculative_config={"n": 1}), "decoded speculatively"),
    "a pipeline": (LINES, resolved(parallel_config={"pipeline_parallel_size": 2}), "pipeline of GPUs"),
    "by priority": (LINES, resolved(scheduler_config={"policy": "priority"}), "by priority"),
    "unknown graphs": (LINES, resolved(compilation_config={"cudagraph_mode": "SOME"}), "cudagraph_mode is 'SOME'"),
    "no requests": ([], meta(), "requests.jsonl has no requests"),
    "no end": (line(last_token_ts=None), meta(), "requests.jsonl:2: last_token_ts is missing"),
    "back in time": (line(last_token_ts=5001), meta(), "last_token_ts is before first_token_ts"),
    "before it arrives": (line(first_token_ts=5001), meta(), "request 1 has a token before it arrives"),
    "no output": (line(output_toks=0), meta(), "output_toks=0 must be at least 1"),
    "no prompt": (line(input_toks=None), meta(), "input_toks 'None' is not a whole number"),
    "no clock": (
        [{**each, "queued_ts": None} for each in LINES],
        meta(),
        "arrivals have another clock, and queued_ts is missing",
    ),
    "no arrival": (line(arrival_time=None), meta(), "arrival_time is missing, and no trace has it"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_faulty_run_is_refused_in_one_line(fault: str, tmp_path: Path) -> None:
    lines, its, message = REFUSED[fault]
    write_run(tmp_path, lines, its)
    with pytest.raises(ValueError, match=r"(?s).*") as refused:
        read_server_run(tmp_path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_missing_or_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        read_server_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"meta.json is not there"):
        read_server_run(tmp_path)
    (tmp_path / "meta.json").write_text("[]")
    with pytest.raises(ValueError, match=r"meta.json is no JSON object"):
        read_server_run(tmp_path)
    write_run(tmp_path, LINES)
    (tmp_path / "requests.jsonl").unlink()
    with pytest.raises(ValueError, match=r"requests.jsonl is not there"):
        read_server_run(tmp_path)


def test_a_trace_of_other_requests_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, LINES)
    write_trace(tmp_path, [range(32), range(17)], [3, 1])
    with pytest.raises(ValueError, match=r"request 1 has 16 and 1 tokens in requests.jsonl, 17 and 1 in the trace"):
        read_server_run(tmp_path)
    write_trace(tmp_path, [range(32)], [3])
    with pytest.raises(ValueError, match="2 requests were served and the trace has 1"):
        read_server_run(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1.0,2,1,120", "kv_cache_pct 120 is above 100"),
        ("1.0,x,1,12", "running 'x' is not a whole number"),
        ("1.0,2,1", "3 fields, not 4"),
    ],
)
def test_a_faulty_series_is_refused(row: str, message: str, tmp_path: Path) -> None:
    write_run(tmp_path, LINES)
    (tmp_path / "timeseries.csv").write_text(f"t,running,waiting,kv_cache_pct\n{row}\n")
    with pytest.raises(ValueError, match=message):
        read_server_run(tmp_path)


@pytest.mark.skipif(not GROUND.is_dir(), reason="the RTX 4090 run is not here")
def test_the_rtx_4090_run_is_as_its_readme_says() -> None:
    run = read_server_run(GROUND)
    assert len(run.requests) == 300
    assert (run.settings.n_blocks, run.settings.vllm_version) == (2588, "0.19.0")
    assert run.samples[0].n_running == 5
    assert run.samples[0].at_ns == pytest.approx(0.91 * NS_PER_S, abs=0.005 * NS_PER_S), (
        "started at 979.9925 s, the first request came at 980.0827 s"
    )
