from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S
from tests.traces.burstiness import cv, idc, write_azure
from traces.formats import TraceRow, detect, read_trace
from traces.formats.lines import MAX_LINE_BYTES

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:17:03.9799600,4808,10"

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def rows_of(path: Path, text: str | bytes) -> list[TraceRow]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_trace(path))


@pytest.mark.parametrize(
    ("name", "n_rows", "span_s", "iat_cv", "dispersion", "mean_prompt", "mean_output"),
    [
        ("azure_code_2023.csv.gz", 8819, 3435.9, 13.15, (13.2, 71.9, 166.9), 2047.8, 27.9),
        ("azure_conv_2023.csv.gz", 19366, 3501.7, 1.09, (1.39, 3.87, 16.4), 1154.7, 211.1),
    ],
)
def test_the_published_traces_have_their_published_statistics(
    published: Path,
    name: str,
    n_rows: int,
    span_s: float,
    iat_cv: float,
    dispersion: tuple[float, float, float],
    mean_prompt: float,
    mean_output: float,
) -> None:
    # Golden: computed from the same files by other code (IDC in windows of 1, 10 and 60 s).
    rows = list(read_trace(published / name))
    times_ns = [row.arrival_ns for row in rows]
    assert len(rows) == n_rows
    assert times_ns[-1] / NS_PER_S == pytest.approx(span_s, abs=0.05)
    assert cv(times_ns) == pytest.approx(iat_cv, abs=0.005)
    for window_s, expected in zip((1, 10, 60), dispersion, strict=True):
        assert idc(times_ns, window_s * NS_PER_S) == pytest.approx(expected, rel=0.005)
    assert np.mean([row.n_prompt_tokens for row in rows]) == pytest.approx(mean_prompt, abs=0.05)
    assert np.mean([row.n_output_tokens for row in rows]) == pytest.approx(mean_output, abs=0.05)


def test_the_head_of_the_code_trace_reads_to_the_nanosecond(awkward: Path) -> None:
    # 18:17:04.0319600 - 18:17:03.9799600 = 0.052 s; 04.0781490 - 03.9799600 = 0.098189 s.
    rows = list(read_trace(awkward / "a01_azure2023_crlf_7digits_nofinalnewline.csv"))
    assert rows[:3] == [TraceRow(0, 4808, 10), TraceRow(52_000_000, 3180, 8), TraceRow(98_189_000, 110, 27)]


@same_folder
@given(
    gaps=st.lists(st.integers(0, 10**12), max_size=20),
    digits=st.integers(0, 9),
    ends=st.sampled_from(["\n", "\r\n"]),
    zone=st.sampled_from(["", "Z", "+00:00", "+01:00"]),
    is_packed=st.booleans(),
)
def test_what_was_written_is_read_to_the_last_digit(
    tmp_path: Path, gaps: list[int], digits: int, ends: str, zone: str, is_packed: bool
) -> None:
    unit_ns = 10 ** (9 - digits)
    times_ns = [sum(gaps[:n]) // unit_ns * unit_ns for n in range(len(gaps) + 1)]
    lines = [HEADER]
    for number, time_ns in enumerate(times_ns):
        second, rest_ns = divmod(time_ns, NS_PER_S)
        fraction = f".{rest_ns:09d}"[: digits + 1] if digits else ""
        stamp = np.datetime64("2023-11-16T18:17:03") + np.timedelta64(second, "s")
        lines.append(f"{str(stamp).replace('T', ' ')}{fraction}{zone},{number},{number + 1}")
    raw = ends.join(lines).encode()
    read = rows_of(tmp_path / "trace", gzip.compress(raw, mtime=0) if is_packed else raw)
    assert read == [TraceRow(time_ns, number, number + 1) for number, time_ns in enumerate(times_ns)]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz", "trace"])
def test_gzip_is_told_by_content_and_not_by_name(tmp_path: Path, name: str) -> None:
    text = f"{HEADER}\n{ROW}\n"
    assert rows_of(tmp_path / name, text) == rows_of(tmp_path / name, gzip.compress(text.encode()))


def test_a_byte_order_mark_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    assert rows_of(tmp_path / "t", f"\ufeff{HEADER}\r\n{ROW}\r\n\r\n") == [TraceRow(0, 4808, 10)]


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    text = "ContextTokens,TIMESTAMP,GeneratedTokens\n4808,2023-11-16 18:17:03,10\n"
    assert rows_of(tmp_path / "t", text) == [TraceRow(0, 4808, 10)]


def test_rows_at_the_same_time_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(0, 5, 1), (0, 3, 2), (0, 4, 3)])
    assert [row.n_prompt_tokens for row in read_trace(path)] == [5, 3, 4]


def test_a_row_without_tokens_is_a_failed_request(tmp_path: Path) -> None:
    path = write_azure(tmp_path / "t", [(0, 5, 0), (1000, 0, 5), (2000, 5, 5)])
    assert [row.is_failed for row in read_trace(path)] == [True, True, False]


def test_rows_come_out_before_later_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(f"{HEADER}\n{ROW}\nbroken\n")
    rows = read_trace(path)
    assert next(rows) == TraceRow(0, 4808, 10)
    with pytest.raises(ValueError, match=":3: "):
        next(rows)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "the file is empty"),
        (f"{HEADER}\r\n", 1, "no rows"),
        ("1,2,3\n", 1, "values, where the names of the columns should be"),
        ("TIMESTAMP,ContextTokens\n", 1, "not a trace of a known format: like azure without GeneratedTokens"),
        (f"{HEADER},TIMESTAMP\n", 1, "a column is there twice"),
        (f"{HEADER}\n{ROW},7\n", 2, "4 fields, not 3"),
        (f"{HEADER}\n{ROW}\nx\n", 3, "1 fields, not 3"),
        (f"{HEADER}\n2023-11-16 18:17:03,4808,\n", 2, "GeneratedTokens '' is not a whole number"),
        (f"{HEADER}\n2023-11-16 18:17:03,nan,1\n", 2, "ContextTokens 'nan' is not a whole number"),
        (f"{HEADER}\n2023-11-16 18:17:03,1.5,1\n", 2, "ContextTokens '1.5' is not a whole number"),
        (f"{HEADER}\n2023-11-16 18:17:03,1_0,1\n", 2, "ContextTokens '1_0' is not a whole number"),
        (f"{HEADER}\n2023-11-16 18:17:03,\u0661,1\n", 2, "ContextTokens '\u0661' is not a whole number"),
        (f"{HEADER}\n2023-11-16 18:17:03,-4,1\n", 2, "ContextTokens -4 is negative"),
        (f"{HEADER}\n2023-11-16 18:17:03,1,2147483648\n", 2, "GeneratedTokens '2147483648' is above 2147483647 tokens"),
        (f"{HEADER}\n2023-11-16 18:17:03,{'9' * 9999},1\n", 2, f"ContextTokens '{'9' * 40}'... is above"),
        (f"{HEADER}\n2023-13-16 18:17:03,1,1\n", 2, "TIMESTAMP '2023-13-16 18:17:03' is no date and time"),
        (f"{HEADER}\n2023-11-16 18:17:03+99:00,1,1\n", 2, "TIMESTAMP '2023-11-16 18:17:03+99:00' is no date and time"),
        (
            f"{HEADER}\n9999-12-31 23:59:59,1,1\n",
            2,
            "TIMESTAMP '9999-12-31 23:59:59' is not within 4611686018427387904",
        ),
        (f"{HEADER}\n17,1,1\n", 2, "TIMESTAMP '17' is not like"),
        (f"{HEADER}\nNaN,1,1\n", 2, "TIMESTAMP 'NaN' is not like"),
        (f"{HEADER}\n{ROW}\n2023-11-16 18:17:03.9799599,1,1\n", 3, "time goes back by 100 ns"),
        (b"\xff\xfe\x00junk", 1, "text in UTF-16 or UTF-32"),
        (b"\xfa\x00junk", 1, "not UTF-8 text"),
        (f"{HEADER}\n".encode() + b"\x00\x80", 2, "not UTF-8 text"),
        (b"x" * (MAX_LINE_BYTES + 1), 1, f"a line of {MAX_LINE_BYTES} bytes or more"),
        (gzip.compress(f"{HEADER}\n{ROW}".encode(), mtime=0)[:-9], 2, "damaged gzip"),
        (gzip.compress(f"{HEADER}\n{ROW}".encode(), mtime=0)[:12] + b"junk" * 9, 1, "damaged gzip"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_input_is_refused_with_its_line_and_a_mend(tmp_path: Path, text: str | bytes, line: int, what: str) -> None:
    path = tmp_path / "trace.csv"
    with pytest.raises(ValueError) as error:  # noqa: PT011
        rows_of(path, text)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: {what}")
    assert "; " in message
    assert message.isprintable()


@pytest.mark.parametrize(("name", "why"), [("missing.csv", "No such file"), (".", "Is a directory")])
def test_what_is_no_readable_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*; give the path"):
        read_trace(tmp_path / name)


@same_folder
@given(head=st.sampled_from([b"", HEADER.encode() + b"\n", b"\x1f\x8b\x08"]), junk=st.binary(max_size=200))
def test_any_bytes_are_rows_or_one_line_of_error(tmp_path: Path, head: bytes, junk: bytes) -> None:
    try:
        rows_of(tmp_path / "t", head + junk)
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017


@same_folder
@given(st.integers(0, 80))
def test_a_gzip_cut_anywhere_is_refused(tmp_path: Path, n_bytes: int) -> None:
    packed = gzip.compress(f"{HEADER}\n{ROW}\n".encode())
    with pytest.raises(ValueError, match=r":\d+: "):
        rows_of(tmp_path / "t", packed[: min(n_bytes, len(packed) - 1)])


def test_the_format_is_found_from_the_contents(tmp_path: Path) -> None:
    assert detect(write_azure(tmp_path / "mooncake.jsonl", [(0, 1, 1)])).name == "azure"
