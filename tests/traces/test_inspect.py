from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S
from tests.traces.burstiness import cv, idc, write_azure
from tests.traces.formats.samples import SAMPLES
from traces.__main__ import COMMANDS
from traces.cli import dispatch
from traces.formats import first_tokens
from traces.inspect.arrivals import ArrivalStatistics
from traces.inspect.inspection import Inspection
from traces.inspect.oddities import ODDITIES
from traces.inspect.prefixes import BlockCache, blocks_of
from traces.inspect.report import report, text
from traces.sessions.sessions import read_sessions
from traces.workload.replay import measure
from traces.writing.convert import converted


def inspected(path: Path, **options: Any) -> dict[str, Any]:
    return report(Inspection(path, **options), most_rows=1000)


def odd_of(path: Path, **options: Any) -> dict[str, int]:
    return {key: find["count"] for key, find in inspected(path, **options)["odd"].items()}


# Golden: hit shares of the two files by other code, LRU over 512-token blocks, touched root first.
HIT_SHARES = {
    "conversation": {
        1000: 0.0445, 5000: 0.1104, 10_000: 0.2112, 30_000: 0.3257, 50_000: 0.3546, 100_000: 0.3637, None: 0.3664,
    },
    "synthetic": {1000: 0.0825, 5000: 0.2791, 10_000: 0.4235, 30_000: 0.6242, None: 0.6396},
}  # fmt: skip


@pytest.mark.parametrize("part", HIT_SHARES)
def test_the_mooncake_traces_have_their_hit_shares_to_four_digits(published: Path, part: str) -> None:
    wanted = HIT_SHARES[part]
    capacities = [capacity for capacity in wanted if capacity is not None]
    found = inspected(published / f"mooncake_{part}_trace.jsonl.gz", cache_blocks=capacities)["prefixes"]
    shares = {cache["capacity_blocks"]: round(cache["block_hit_share"], 4) for cache in found["caches"]}
    assert shares == wanted
    assert round(found["caches"][-1]["token_hit_share"], 4) == {"conversation": 0.3736, "synthetic": 0.6512}[part]


def test_the_conversations_that_mooncake_does_not_name_are_inferred(published: Path) -> None:
    # Golden: 8076 chains, 74.7 % of one turn, at most 43; 39 s, 123 s and 474 s are P10, P50 and P90 between turns.
    chains = inspected(published / "mooncake_conversation_trace.jsonl.gz")["inferred_sessions"]
    assert chains["chains"] == 8076
    assert chains["single_turn_share"] == pytest.approx(0.747, abs=5e-4)
    assert chains["turns_per_chain"]["max"] == 43
    assert (chains["start_to_start_s"]["p50"], chains["start_to_start_s"]["p90"]) == (123.0, 474.0)


@pytest.mark.parametrize(
    ("name", "rows", "rate", "gap_cv", "dispersion", "most", "ties"),
    [
        ("azure_code_2023.csv.gz", 8819, 2.567, 13.15, (13.2, 71.9, 166.9), 67, 0),
        ("azure_conv_2023.csv.gz", 19366, 5.530, 1.09, (1.39, 3.87, 16.4), 16, 0),
        ("mooncake_synthetic_trace.jsonl.gz", 3993, 3.907, 1.01, (1.09, 1.19, 1.27), 13, 11),
        ("mooncake_conversation_trace.jsonl.gz", 12031, 3.402, 3.03, (7.9, 2.10, 3.00), 28, 10851),
        ("ragpulse_0_trace.jsonl.gz", 7106, 0.0118, 3.06, (1.01, 1.07, 1.73), 3, 90),
    ],
)
def test_published_traces_have_their_published_statistics(
    published: Path,
    name: str,
    rows: int,
    rate: float,
    gap_cv: float,
    dispersion: tuple[float, float, float],
    most: int,
    ties: int,
) -> None:
    # Golden: computed from the same files by other code.
    found = inspected(published / name)
    arrivals = found["arrivals"]
    assert (found["rows"], arrivals["most_in_1s"], arrivals["ties"]) == (rows, most, ties)
    assert arrivals["rate_per_s"] == pytest.approx(rate, rel=5e-3)
    assert arrivals["gap_cv"] == pytest.approx(gap_cv, abs=6e-3)
    for window_s, expected in zip((1, 10, 60), dispersion, strict=True):
        assert arrivals[f"idc_{window_s}s"] == pytest.approx(expected, rel=0.02)


def test_the_gaps_of_azure_code_are_named(published: Path) -> None:
    # Golden: 12 gaps above 60 s, the longest 217.2 s; 73.4 % of the seconds are empty.
    found = inspected(published / "azure_code_2023.csv.gz", context_tokens=2048)
    assert found["odd"]["idle_gap"]["count"] == 12
    assert found["arrivals"]["longest_gap_s"] == pytest.approx(217.2, abs=0.05)
    assert found["arrivals"]["empty_seconds_share"] == pytest.approx(0.734, abs=5e-4)
    # 37 % of the prompts alone exceed OPT's 2048.
    assert 0.37 < found["odd"]["overlong"]["count"] / found["rows"] < 0.39


def test_what_is_odd_about_published_traces_is_found(published: Path) -> None:
    assert {"crlf", "no_final_newline", "atom", "no_prefix_identity"} <= set(
        odd_of(published / "azure_code_2023.csv.gz")
    )
    assert {"coarse_times", "tie"} <= set(odd_of(published / "mooncake_conversation_trace.jsonl.gz"))
    assert odd_of(published / "burstgpt_1_head54.csv").items() >= {"no_prompt": 2, "no_output": 3}.items()
    ragpulse = inspected(published / "ragpulse_0_trace.jsonl.gz")
    assert ragpulse["odd"]["out_of_order"]["rows"] == [3801]
    assert {"time_as_string", "blank_line"} <= set(ragpulse["odd"])
    assert ragpulse["passage_reuse_share"]["passages_ids"] == pytest.approx(0.903, abs=5e-4)
    lmcache = odd_of(published / "lmcache_hf_agentic_shard4.jsonl.gz")
    assert lmcache.items() >= {"no_prompt": 4976, "turn_without_time": 4976}.items()
    calls = odd_of(published / "exgentic_swebench_claude_code.jsonl.gz")
    assert calls.items() >= {"error": 148, "no_prompt": 148, "no_output": 148}.items()
    assert calls["session_overlaps"] / (2294 - 46) == pytest.approx(0.31, abs=5e-3)
    assert "mixed_dates" in calls


def test_what_is_odd_about_awkward_files_is_found(awkward: Path) -> None:
    wanted = {
        "a01": {"crlf": 8, "no_final_newline": 1},
        "a04": {"tie": 3, "no_output": 1, "coarse_times": 1},
        "a06": {"fault": 1},
        "a08": {"out_of_order": 5, "session_goes_back": 5, "no_output": 5},
        "a12": {"hashes_disagree": 1, "no_identity": 1},
        "a14": {"nested": 2, "turn_without_time": 1, "out_of_order": 1},
        "a15": {"byte_order_mark": 1},
        "a17": {"no_time": 1, "turn_without_time": 10},
        "a18": {"overlong": 2, "no_prefix_identity": 1},
        "a19": {"no_final_newline": 1},
        "a21": {"warm_up": 1},
    }
    for path in awkward.iterdir():
        if path.name.startswith("a09"):
            continue
        expected = wanted[path.name[:3]]
        assert odd_of(path, context_tokens=100_000).items() >= expected.items(), path.name


def test_every_oddity_that_a_reader_names_is_known() -> None:
    sources = Path(__file__).parents[2] / "traces" / "formats"
    named = {word for file in sources.glob("*.py") for word in file.read_text().split('"') if word in ODDITIES}
    assert {"wide_hash", "hashes_disagree", "count_as_string", "mixed_dates", "nested", "estimated_tokens"} <= named


@given(st.lists(st.integers(0, 300 * NS_PER_S), min_size=2, max_size=200).map(sorted))
def test_statistics_in_one_pass_are_those_of_the_whole(times_ns: list[int]) -> None:
    times_ns = [time_ns - times_ns[0] for time_ns in times_ns]
    statistics = ArrivalStatistics()
    for time_ns in times_ns:
        statistics.add(time_ns + 7 * NS_PER_S)
    found = statistics.summary()
    if times_ns[-1]:
        assert found["gap_cv"] == pytest.approx(cv(times_ns), abs=1e-6)
    for window_s in (1, 10, 60):
        n_windows = times_ns[-1] // (window_s * NS_PER_S)
        whole = np.searchsorted(times_ns, n_windows * window_s * NS_PER_S)
        if n_windows >= 2 and whole:
            assert found[f"idc_{window_s}s"] == pytest.approx(idc(times_ns, window_s * NS_PER_S), rel=1e-9, abs=1e-9)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=30), st.integers(1, 8))
def test_a_block_cache_holds_the_blocks_touched_last(prompts: list[list[int]], capacity: int) -> None:
    cache = BlockCache(capacity)
    touched: OrderedDict[int, None] = OrderedDict()
    for prompt in prompts:
        newest = list(touched)[-capacity:]
        n_lead = next((n for n, block in enumerate(prompt) if block not in newest), len(prompt))
        assert cache.ask([(str(block), 16) for block in prompt]) == n_lead
        for block in prompt:
            touched.pop(block, None)
            touched[block] = None
        assert len(cache) == min(capacity, len(touched))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), max_size=8), st.integers(1, 32), st.integers(0, 200)
)
def test_prompts_share_blocks_as_far_as_they_are_the_same(
    pieces: list[tuple[str, int]], block_tokens: int, n_kept: int
) -> None:
    whole = tuple(pieces)
    n_tokens = sum(n for _, n in whole)
    blocks = blocks_of(whole, block_tokens)
    assert sum(n for _, n in blocks) == n_tokens
    n_kept = min(n_kept, n_tokens)
    other = (*(first_tokens(whole, n_kept) if n_kept else ()), ("z", 100))
    shared = sum(one == two for one, two in zip(blocks, blocks_of(other, block_tokens), strict=False))
    assert shared == n_kept // block_tokens


def test_times_in_a_unit_that_makes_no_sense_are_doubted(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    rows = [{"timestamp": n / 3, "input_length": 1, "output_length": 1} for n in range(100)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert "doubtful_unit" in odd_of(path)
    assert "doubtful_unit" not in odd_of(path, time_unit="s")


def test_gaps_that_are_all_alike_are_made_and_not_recorded(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "BurstGPT_1.csv", [(n * NS_PER_S, 5, 5) for n in range(20)])
    assert odd_of(path)["even_gaps"] == 1


def test_dates_of_several_forms_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    dates = ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", "2024-05-10 00:00:02.5")
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{date},1,1" for date in dates)]))
    found = inspected(path)
    assert [(s["fraction_digits"], s["zone"]) for s in found["times"]["spelled"]] == [
        (6, "+00:00"),
        (0, "+00:00"),
        (1, "none"),
    ]
    assert found["odd"]["mixed_dates"]["rows"] == [3, 4]


def test_columns_of_unknown_meaning_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("arrived_at,secret,num_prefill_tokens,num_decode_tokens\n0,7,1,1\n")
    assert inspected(path)["odd"]["unknown_column"]["details"] == ["secret"]


def test_the_report_is_a_document_and_a_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_azure(tmp_path / "t", [(0, 5000, 1), (NS_PER_S, 5, 0)])
    assert dispatch("traces", COMMANDS, ["inspect", str(path), "--json", "--model", "opt_13b"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["odd"]["overlong"]["rows"] == [2]
    assert document["failed_rows"] == 1
    assert "overlong x 1" in text(document)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["inspect", "missing.csv"], "No such file"),
        (["inspect"], "required"),
        (["inspect", "{path}", "--cache-blocks", "0"], "no whole number of 1 or more"),
        (["inspect", "{path}", "--model", "gpt_9"], "choose one of"),
        (["inspect", "{path}", "--model", "../conf/x"], "no model ../conf/x; choose one of"),
        (["inspect", "{path}", "--speed"], "unrecognized arguments"),
        (["convert", "{path}", "{path}.txt"], "ends in none of"),
        (["convert", "{path}", "{path}"], "ends in none of"),
        (["convert", "{path}", "/nowhere/out.csv"], "cannot write"),
        (["make", "{path}.csv", "--lengths", "alpaca_full", "--rate", "1"], "no end"),
        (["make", "{path}.csv", "--lengths", "alpaca_full", "--n", "5"], "needs arrivals.rate"),
        (["make", "{path}.csv", "--lengths", "alpaca_full", "--n", "0", "--rate", "1"], "must be above 0"),
        (["fly"], "no command 'fly'"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    path = write_azure(tmp_path / "t", [(0, 5, 1)])
    assert dispatch("traces", COMMANDS, [argument.format(path=path) for argument in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert what in said.err


def every_way(path: Path) -> list[Callable[[], object]]:
    """Each way to use a trace file."""
    return [
        lambda: text(json.loads(json.dumps(inspected(path, cache_blocks=[3], context_tokens=2048)))),
        lambda: list(measure(path).arrivals(np.random.default_rng(0), 0.3)),
        lambda: list(read_sessions(path)),
        lambda: list(converted(path)),
    ]


SPOILERS = [
    b"-1",
    b"NaN",
    b"null",
    b'""',
    b'"',
    b"1e400",
    b"\x00",
    b"\xff",
    b"\n",
    b"\r",
    b",",
    b"{",
    b"]",
    b"true",
    b"[" * 999,
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    head=st.sampled_from([sample for sample, _ in SAMPLES.values()]).map(str.encode),
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(SPOILERS)), min_size=1, max_size=4),
)
def test_a_spoiled_file_is_used_or_refused_in_one_line_whatever_is_done_with_it(
    tmp_path: Path, head: bytes, places: list[tuple[float, int, bytes]]
) -> None:
    spoiled = bytearray(head)
    for share, n_gone, spoiler in places:
        start = int(share * len(spoiled))
        spoiled[start : start + n_gone] = spoiler
    path = tmp_path / "trace"
    path.write_bytes(spoiled)
    for use in every_way(path):
        try:
            use()
        except ValueError as error:
            assert str(error).isprintable()  # noqa: PT017
            assert str(error).startswith(str(path))  # noqa: PT017
