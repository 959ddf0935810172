from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.formats.samples import MS, SAMPLES, entries_of
from traces.formats import FORMATS, read_entries
from traces.formats.records import records

GOOD = '{"timestamp": 5, "input_length": 1, "output_length": 1}'


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('{"timestamp": 0, "input_length": 1, "output_length":2748 610}', "no JSON"),
        ('{"timestamp": 0, "input_length": NaN, "output_length": 1}', "input_length 'nan' is not a whole number"),
        ('{"timestamp": 0, "input_length": 1, "output_length": -3}', "output_length -3 is negative"),
        ('{"timestamp": 0, "input_length": 1.5, "output_length": 3}', "input_length '1.5' is not a whole number"),
        ('{"timestamp": 0, "input_length": true, "output_length": 3}', "input_length 'True' is not a whole number"),
        ('{"timestamp": 0, "input_length": null, "output_length": 3}', "input_length is missing"),
        (
            '{"timestamp": 0, "input_length": 1e30, "output_length": 3}',
            "input_length '1000000000000000000000000000000' is above",
        ),
        ('{"timestamp": 0, "input_length": 1.5e0, "output_length": 3}', "input_length '1.5' is not a whole number"),
        ('{"timestamp": 0, "input_length": "1,000", "output_length": 3}', "input_length '1,000' is not a whole number"),
        ('{"timestamp": 1e999999999999999999999, "input_length": 1, "output_length": 3}', "no JSON (a number out of"),
        ('{"timestamp": 0, "timestamp": 9, "input_length": 1, "output_length": 3}', "'timestamp' is there twice"),
        (
            '{"timestamp": "2023-11-16 18:17:05", "input_length": 1, "output_length": 3}',
            "timestamp '2023-11-16 18:17:05' is a date among numbers of ms",
        ),
        ('{"timestamp": 0, "input_length": 99999999999, "output_length": 3}', "input_length '99999999999' is above"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 3}', "timestamp 'nan' is not like"),
        ('{"timestamp": Infinity, "input_length": 1, "output_length": 3}', "timestamp 'inf' is not like"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 3}', "timestamp '-1' is before 0"),
        ('{"timestamp": 1e90, "input_length": 1, "output_length": 3}', "timestamp '1E+90' is later than"),
        ('{"timestamp": [], "input_length": 1, "output_length": 3}', "timestamp '[]' is not like"),
        ('{"input_length": 1, "output_length": 3}', "timestamp is missing"),
        ('{"delay": 3, "input_length": 1, "output_length": 3}', "timestamp is missing"),
        ('{"session_id": 1, "delay": -3, "input_length": 1, "output_length": 3}', "delay '-3' is negative"),
        ('{"session_id": 1, "delay": "x", "input_length": 1, "output_length": 3}', "delay 'x' is not a number of ms"),
        ('{"timestamp": 9, "input_length": 1, "output_length": 3, "hash_ids": 7}', "hash_ids '7' is no list"),
        ('{"timestamp": 9, "input_length": 1, "output_length": 3, "hash_ids": [1.5]}', "hash id '1.5' is neither"),
        ('{"timestamp": 9, "input_length": 1, "output_length": 3, "hash_ids": ["a|b"]}', "hash id 'a|b' is neither"),
        ("[1]", "'[1]' is no JSON object"),
        ("[" * 100_000, "no JSON"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_faulty_row_is_one_line_with_its_number_or_left_out_and_counted(tmp_path: Path, row: str, what: str) -> None:
    path = tmp_path / "trace"
    path.write_text(f"{GOOD}\n{row}\n{GOOD}\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        list(read_entries(path))
    assert str(error.value).startswith(f"{path}:2: {what}")
    assert str(error.value).isprintable()
    faults: list[tuple[int, str]] = []

    def note(line: int, said: str) -> None:
        faults.append((line, said))

    assert [entry.line for entry in read_entries(path, on_fault=note)] == [1, 3]
    assert [(line, said[: len(what)]) for line, said in faults] == [(2, what)]


def test_counts_as_strings_or_with_a_fraction_of_zero_are_read(tmp_path: Path) -> None:
    row = '{"timestamp": "7", "input_length": "12", "output_length": 3.0}'
    (entry,) = entries_of(tmp_path, row)
    assert (entry.time_ns, entry.n_prompt, entry.n_output) == (7 * MS, 12, 3)
    assert set(entry.odd) == {"count_as_string", "count_spelled", "time_as_string"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("[]", "an array without objects"),
        ("[1, 2]", "an array without objects"),
        ('{"a": 1}\n', "not a trace of a known format ('a')"),
        ("0,0,0,,0,0\n1,2\n", "values, where the names of the columns should be"),
        ("a,b,a\n1,2,3\n", "a column is there twice"),
        ("timestamp,input_length\n1,2\n", "not a trace of a known format: like mooncake without output_length"),
        ('[{"conversations": []}, {"conv', "the array breaks off or is no JSON behind element 1"),
        ("<html>\n", "not a trace of a known format ('<html>')"),
        ("PK\x03\x04junk", "a ZIP archive; unpack it"),
        ("PAR1junk", "a Parquet file; write it as CSV"),
        ("a\0,\0b\0\n", "zero bytes: no text, or text in UTF-16"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\r1,2,3\r", "lines that end with CR alone; end them with LF"),
        ("2023-11-16 18:17:05,5,6\n2023-11-16 18:17:06,7,8\n", "values, where the names of the columns should be"),
        ("0.0,5,5\n0.5,7,8\n", "values, where the names of the columns should be"),
        (
            '{"requests": [{"timestamp": 0}]}',
            "an object with a list of objects as its 'requests'; give that list alone",
        ),
        (f"[{GOOD}]\n[{GOOD}]\n", "something follows the array"),
        (f"[{GOOD}]{' ' * 2**17}{GOOD}\n", "something follows the array"),
        (f"[[{GOOD}]]", "an array without objects"),
        ('[{"a": 1, "a": 2}]', "'a' is there twice"),
        ('"Mo\ndel",Timestamp,Request tokens,Response tokens\nb,2,6,6\n', "the header is no CSV"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "azure_code.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        list(read_entries(path))
    assert what in str(error.value)
    assert str(error.value).startswith(f"{path}:")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("count", ["12.0", "12.00", "1.2e1", " 12 ", "1200e-2"])
def test_a_whole_number_is_read_however_it_is_written_and_counted(tmp_path: Path, count: str) -> None:
    (entry,) = entries_of(tmp_path, f"arrived_at,num_prefill_tokens,num_decode_tokens\n0,{count},3\n")
    assert (entry.n_prompt, entry.odd) == (12, ("count_spelled",))


def test_columns_without_a_name_are_left_out(tmp_path: Path) -> None:
    (entry,) = entries_of(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens,,\n0,12,3,,\n")
    assert (entry.n_prompt, entry.n_output) == (12, 3)


def test_a_quote_that_its_line_does_not_close_is_a_fault_of_the_row(tmp_path: Path) -> None:
    rows = 'Timestamp,Model,Request tokens,Response tokens\n1,"GPT\n4",5,5\n'
    with pytest.raises(ValueError, match="2: no CSV"):
        entries_of(tmp_path, rows)


@pytest.mark.parametrize("head", [b"\xff\xfea\0", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PAR1"])
@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_what_is_packed_in_other_ways_is_called_by_its_name(
    tmp_path: Path, head: bytes, packed: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(packed(head))
    with pytest.raises(ValueError, match=r"UTF-16|bzip2|xz|zstd|Parquet"):
        list(read_entries(path))


def test_gzip_within_gzip_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(gzip.compress(GOOD.encode())))
    with pytest.raises(ValueError, match="gzip within gzip; unpack it once"):
        list(read_entries(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="a pipe or a device, no file; write it to a file first"):
        list(read_entries(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    head=st.sampled_from([text for text, _ in SAMPLES.values()]).map(str.encode),
    cut=st.integers(0, 400),
    junk=st.binary(max_size=60),
)
def test_any_bytes_are_entries_or_one_line(tmp_path: Path, head: bytes, cut: int, junk: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(head[:cut] + junk + head[cut:])
    try:
        list(read_entries(path))
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017
        assert str(error).startswith(str(path))  # noqa: PT017


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=30), max_size=3), min_size=1, max_size=30),
    st.sampled_from([None, 1, 4]),
)
def test_an_array_is_read_element_by_element_however_it_is_broken_into_lines(
    tmp_path: Path, elements: list[dict[str, str]], indent: int | None
) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(elements, indent=indent, ensure_ascii=False), encoding="utf-8")
    read = list(records(path, "json"))
    assert [record for _, record in read] == elements
    assert [number for number, _ in read] == list(range(1, len(elements) + 1))


def test_every_format_has_a_name_of_its_own_and_a_source() -> None:
    assert len({kind.name for kind in FORMATS}) == len(FORMATS)
    assert all(kind.source for kind in FORMATS)
