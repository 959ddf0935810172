from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from policies.types import NS_PER_S
from tests.traces.formats.samples import MS, SAMPLES, entries_of, rows_of
from traces.formats import OutOfOrderError, detect, read_trace


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", ["trace.csv", "mooncake.jsonl", "BurstGPT_1.csv.gz"])
def test_a_format_is_found_by_what_a_file_says_and_not_by_its_name(
    tmp_path: Path, sample: str, is_packed: bool, name: str
) -> None:
    text, expected = SAMPLES[sample]
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    assert detect(path).name == sample.split()[0]
    assert rows_of(path) == expected


@pytest.mark.parametrize("sample", [name for name, (text, _) in SAMPLES.items() if text[0] not in "{["])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_line_ends_marks_and_blank_lines_change_nothing(
    tmp_path: Path, sample: str, ends: str, mark: str, last: str
) -> None:
    text, expected = SAMPLES[sample]
    path = tmp_path / "trace"
    path.write_bytes((mark + text.replace("\r\n", "\n").rstrip("\n") + last).replace("\n", ends).encode())
    assert rows_of(path) == expected


@pytest.mark.parametrize("sample", [name for name, (text, _) in SAMPLES.items() if text[0] not in "{["])
def test_columns_may_stand_anywhere_with_any_separator_and_others_between_them(tmp_path: Path, sample: str) -> None:
    text, expected = SAMPLES[sample]
    lines = [line.split(",")[::-1] for line in text.splitlines()]
    path = tmp_path / "trace"
    path.write_text("\n".join(";".join([f'"new; {number}"', *fields]) for number, fields in enumerate(lines)))
    assert rows_of(path) == expected


@pytest.mark.parametrize("name", ["mooncake", "llmservingsim", "lmcache"])
def test_json_lines_and_one_array_are_the_same(tmp_path: Path, name: str) -> None:
    text, expected = SAMPLES[name]
    path = tmp_path / "trace"
    path.write_text("[" + ",\n ".join(text.splitlines()) + "]\n")
    assert rows_of(path) == expected


def test_the_unit_of_times_is_what_a_date_since_1970_shows_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for first, unit_ns in ((10**9, NS_PER_S), (10**12, MS), (10**15, 1000), (10**18, 1)):
        rows = [{"timestamp": first + 3 * n, "input_length": 1, "output_length": 1} for n in range(2)]
        path.write_text("\n".join(map(json.dumps, rows)))
        assert rows_of(path)[1][0] == 3 * unit_ns
    path.write_text("\n".join(f'{{"timestamp": {n}, "input_length": 1, "output_length": 1}}' for n in (1, 2)))
    for unit, unit_ns in ((None, MS), ("s", NS_PER_S), ("us", 1000), ("ns", 1)):
        assert [row.arrival_ns for row in read_trace(path, time_unit=unit)] == [0, unit_ns]


def test_a_column_that_names_its_unit_is_believed(tmp_path: Path) -> None:
    first, second = (
        {"input_toks": 1, "output_toks": 1, "arrival_time_ns": time_ns} for time_ns in (2 * 10**9, 2 * 10**9 + 5)
    )
    assert [entry.time_ns for entry in entries_of(tmp_path, first, second)] == [2 * 10**9, 2 * 10**9 + 5]


def test_rows_out_of_order_are_refused_or_sorted_with_ties_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n5,1,1\n3,2,1\n5,3,1\n3,4,1\n")
    with pytest.raises(OutOfOrderError, match=r":3: time goes back by 2000000000 ns"):
        list(read_trace(path))
    assert [(row.arrival_ns // NS_PER_S, row.n_prompt_tokens) for row in read_trace(path, sort=True)] == [
        (0, 2), (0, 4), (2, 1), (2, 3),
    ]  # fmt: skip
