from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.types import NS_PER_S
from traces.formats import FORMATS, Entry, OutOfOrderError, TraceRow, detect, first_tokens, read_entries, read_trace
from traces.formats.records import records

MS = 10**6

# One file of each format, as published: (name, text, (ns since the first, prompt, output) of its rows).
SAMPLES = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0319600,3180,8",
        [(0, 4808, 10), (52 * MS, 3180, 8)],
    ),
    "azure of 2024": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n",
        [(0, 2162, 5), (990_070_000, 2399, 6)],
    ),
    "azure_lmm": (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15T12:00:00.5Z,1,100,7\n"
        "2024-10-15T12:00:01Z,0,200,8\n",
        [(0, 100, 7), (500 * MS, 200, 8)],
    ),
    "azure_counts": ("Time,PromptTokenCount,GeneratedTokenCount\n0.5,3,4\n1.5,5,6\n", [(0, 3, 4), (NS_PER_S, 5, 6)]),
    "vidur": (
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
        [(0, 374, 44), (4_314_579_000, 396, 109)],
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45,GPT-4,1087,230,1317,API log\n",
        [(0, 472, 18), (40 * NS_PER_S, 1087, 230)],
    ),
    "burstgpt of version 2": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,,1.5,ChatGPT,472,18,490,API log\n45,7,2.5,GPT-4,1087,230,1317,Conversation log\n",
        [(0, 472, 18), (40 * NS_PER_S, 1087, 230)],
    ),
    "mooncake": (
        '{"timestamp": 27482, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 672, "output_length": 26, "hash_ids": [46, 2354]}\n',
        [(0, 655, 52), (3053 * MS, 672, 26)],
    ),
    "bailian": (
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 5, "output_length": 1, "type": "t", '
        '"turn": 1, "hash_ids": [1]}\n{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.5, "input_length": 7, '
        '"output_length": 2, "type": "t", "turn": 2}\n',
        [(0, 5, 1), (1386 * MS, 7, 2)],
    ),
    "ragpulse": (
        '{"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": {"sys_prompt": [1], "history": '
        '[]}, "session_id": "a"}\n{"timestamp": "93", "input_length": 3, "output_length": 8, "hash_ids": {}, '
        '"session_id": "b"}\n\n',
        [(0, 3112, 192), (11 * NS_PER_S, 3, 8)],
    ),
    "lmcache": (
        '{"timestamp": 1760587713148649, "session_id": "6c", "input_length": 9, "output_length": 15}\n'
        '{"timestamp": 1760587713148650, "session_id": "6c", "input_length": 30, "output_length": 5}\n',
        [(0, 9, 15), (1000, 30, 5)],
    ),
    "exgentic": (
        "benchmark,session,timestamp,prompt_tokens,completion_tokens\nx,17,2026-04-23T17:23:06.245972+00:00,8,1\n"
        "x,17,2026-04-23T19:23:07.245972+02:00,9,2\n",
        [(0, 8, 1), (NS_PER_S, 9, 2)],
    ),
    "usage": (
        '[{"timestamp": 1760587713.5, "prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},\n\n'
        '{"timestamp": 1760587714, "prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}]',
        [(0, 8, 1), (500 * MS, 9, 1)],
    ),
    "llmservingsim": (
        '{"input_toks": 5, "output_toks": 3, "arrival_time_ns": 7, "input_tok_ids": [1, 2, 3, 4, 5]}\n'
        '{"input_toks": 6, "output_toks": 4, "arrival_time_ns": 9}\n',
        [(0, 5, 3), (2, 6, 4)],
    ),
    "schedule": (
        "id,arrival,prompt,output_len\n0,0.5,sys:96|c0:57,21\n1,0.75,sys:96,5\n",
        [(0, 153, 21), (250 * MS, 96, 5)],
    ),
    "hbmlab": (
        "arrival_ns,n_prompt_tokens,n_output_tokens,session,think_ns,prompt\n0,3,4,,,\n5,5,6,s,7,a:2|b:3\n",
        [(0, 3, 4), (5, 5, 6)],
    ),
}  # fmt: skip


def rows_of(path: Path) -> list[tuple[int, int, int]]:
    return [(row.arrival_ns, row.n_prompt_tokens, row.n_output_tokens) for row in read_trace(path)]


def entries_of(tmp_path: Path, *lines: object) -> list[Entry]:
    path = tmp_path / "trace"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return list(read_entries(path))


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


# --- contents of prompts ---


def test_hash_ids_name_the_blocks_of_a_prompt_from_its_front(tmp_path: Path) -> None:
    (entry,) = entries_of(tmp_path, {"timestamp": 0, "input_length": 1030, "output_length": 1, "hash_ids": [7, 8, 9]})
    assert entry.prompt == (("b7", 512), ("b8", 512), ("b9", 6))
    assert entry.odd == ()


@pytest.mark.parametrize(
    ("ids", "prompt"),
    [
        ([7], (("b7", 512), ("row1", 518))),
        ([7, 8, 9, 10], (("b7", 512), ("b8", 512), ("b9", 6))),
        ([], (("row1", 1030),)),
    ],
)
def test_a_hash_list_that_disagrees_with_the_length_is_counted_and_never_invents_sharing(
    tmp_path: Path, ids: list[int], prompt: tuple[tuple[str, int], ...]
) -> None:
    (entry,) = entries_of(tmp_path, {"timestamp": 0, "input_length": 1030, "output_length": 1, "hash_ids": ids})
    assert entry.prompt == prompt
    assert entry.odd == ("hashes_disagree",)


def test_ids_that_collide_in_32_bits_stay_apart(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [n]} for n in (3, 3 + 2**32, 3 + 2**63)]
    entries = entries_of(tmp_path, *rows)
    assert len({entry.prompt for entry in entries}) == 3
    assert [entry.odd for entry in entries] == [(), ("wide_hash",), ("wide_hash",)]


@given(st.integers(0, 5000), st.lists(st.integers(0, 2**64), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_the_pieces_of_a_prompt_add_up_whatever_the_ids(tmp_path: Path, n_prompt: int, ids: list[int]) -> None:
    row = {"timestamp": 0, "input_length": n_prompt, "output_length": 1, "hash_ids": ids}
    (entry,) = entries_of(tmp_path, row)
    assert entry.prompt is not None
    assert sum(n for _, n in entry.prompt) == n_prompt
    assert all(n > 0 for _, n in entry.prompt)
    for n_tokens in {1, n_prompt // 2, n_prompt} - {0}:
        assert sum(n for _, n in first_tokens(entry.prompt, n_tokens)) == min(n_tokens, n_prompt)


def test_equal_token_ids_are_equal_contents_up_to_the_first_difference(tmp_path: Path) -> None:
    ids = list(range(40))
    rows = [
        {"input_toks": 40, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": each}
        for each in (ids, [*ids[:20], 99, *ids[21:]])
    ]
    one, two = (entry.prompt for entry in entries_of(tmp_path, *rows))
    assert one is not None
    assert two is not None
    assert [n for _, n in one] == [16, 16, 8]
    assert one[0] == two[0]
    assert {stream for stream, _ in one[1:]}.isdisjoint(stream for stream, _ in two[1:])


# --- sessions ---


def test_chats_of_one_root_are_one_session(tmp_path: Path) -> None:
    def chat(number: int, parent: int) -> dict[str, object]:
        return {"chat_id": number, "parent_chat_id": parent, "timestamp": number, "input_length": 1, "output_length": 1}

    entries = entries_of(tmp_path, chat(1, -1), chat(2, -1), chat(3, 1), chat(4, 3), chat(5, 77), chat(6, 5))
    assert [entry.session for entry in entries] == ["1", "2", "1", "1", "77", "77"]


def test_a_turn_with_a_delay_carries_only_what_it_adds(tmp_path: Path) -> None:
    entries = entries_of(
        tmp_path,
        {"session_id": "a", "timestamp": 1000, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 1001, "input_length": 5, "output_length": 6},
        {"session_id": "a", "delay": 250.5, "input_length": 20, "output_length": 30, "hash_ids": [3]},
        {"session_id": "a", "delay": 0, "input_length": 1, "output_length": 1, "hash_ids": [4]},
    )
    assert [(entry.time_ns, entry.think_ns, entry.n_prompt) for entry in entries] == [
        (1000 * MS, None, 600), (1001 * MS, None, 5), (None, 250_500_000, 630), (None, 0, 661),
    ]  # fmt: skip
    assert entries[2].prompt == (("b1", 512), ("b2", 88), ("answer1", 10), ("b3", 20))
    assert "turn_of_increments" in entries[3].odd


def test_calls_within_one_record_are_turns_that_follow_a_tool(tmp_path: Path) -> None:
    calls = [
        {"input_toks": 1472, "output_toks": 133, "tool_duration_ns": 127348767},
        {"input_toks": 1582, "output_toks": 125, "tool_duration_ns": 0},
    ]
    first, second = entries_of(tmp_path, {"session_id": "t", "arrival_time_ns": 40, "sub_requests": calls})
    assert (first.time_ns, first.think_ns, first.n_prompt) == (40, None, 1472)
    assert (second.time_ns, second.think_ns, second.n_prompt, second.session) == (None, 127348767, 1582, "t")


def test_a_wait_after_a_turn_is_the_think_time_of_the_next_of_its_session(tmp_path: Path) -> None:
    header = "session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"
    entries = entries_of(tmp_path, header, "0,0,100,20,5,182", "1,0,0,7,5,9", "0,1,120,30,5,28", "1,1,7,1,5,")
    assert [(entry.n_prompt, entry.think_ns) for entry in entries] == [
        (120, None), (7, None), (150, 182 * MS), (8, 9 * MS),
    ]  # fmt: skip


def test_every_answer_of_a_conversation_is_a_turn_with_all_before_it_as_its_prompt(tmp_path: Path) -> None:
    said = [("human", "x" * 8), ("gpt", "y" * 9), ("human", "z" * 4), ("gpt", "")]
    record = {"id": "q_0", "conversations": [{"from": who, "value": text} for who, text in said]}
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([record, record], indent=1))
    one, two, three, _ = read_entries(path)
    assert [(entry.n_prompt, entry.n_output) for entry in (one, two)] == [(2, 3), (6, 0)]
    assert one.prompt == (("1.0", 2),)
    assert two.prompt == (("1.0", 2), ("1.1", 3), ("1.2", 1))
    assert one.session == two.session != three.session


def test_an_instruction_is_a_request(tmp_path: Path) -> None:
    path = tmp_path / "alpaca.json"
    path.write_text(json.dumps([{"instruction": "abcd", "input": "efg", "output": "h"}]))
    (entry,) = read_entries(path)
    assert (entry.n_prompt, entry.n_output, entry.time_ns) == (2, 1, None)


# --- faults ---

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
        ('{"timestamp": 0, "input_length": 1e30, "output_length": 3}', "input_length '1E+30' is not a whole number"),
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
    assert set(entry.odd) == {"count_as_string", "time_as_string"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("[]", "an array without objects"),
        ("[1, 2]", "an array without objects"),
        ('{"a": 1}\n', "not a trace of a known format ('a')"),
        ("0,0,0,,0,0\n1,2\n", "a column is there twice"),
        ("timestamp,input_length\n1,2\n", "not a trace of a known format: like mooncake without output_length"),
        ('[{"conversations": []}, {"conv', "the array breaks off or is no JSON behind element 1"),
        ("<html>\n", "not a trace of a known format ('<html>')"),
        ("PK\x03\x04junk", "not a trace of a known format"),
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


# --- genuine files ---


def test_every_awkward_file_is_rows_in_order_or_one_line(awkward: Path) -> None:
    refused: dict[str, str] = {}
    for path in sorted(awkward.iterdir()):
        try:
            rows: list[TraceRow] = list(read_trace(path, sort=True))
            assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)
        except ValueError as error:
            refused[path.name[:3]] = str(error)
            assert str(error).isprintable()  # noqa: PT017
    assert set(refused) == {"a06", "a09", "a14", "a17"}
    assert ":2: no JSON" in refused["a06"]
    assert "the file is empty" in refused["a09"]
    assert "begins 0.127349 s after the one before ended" in refused["a14"]
    assert "without an arrival time" in refused["a17"]


def test_the_two_runs_of_ragpulse_are_merged_by_time(published: Path) -> None:
    # Golden: 7106 rows over 604603 s, one inversion (computed from the same file by other code).
    path = published / "ragpulse_0_trace.jsonl.gz"
    with pytest.raises(OutOfOrderError, match=":3801:"):
        list(read_trace(path))
    rows = list(read_trace(path, sort=True))
    assert len(rows) == 7106
    assert rows[-1].arrival_ns == 604_603 * NS_PER_S


def test_vidur_has_the_azure_traces_with_relative_times(published: Path) -> None:
    for part in ("code", "conv"):
        azure = list(read_trace(published / f"azure_{part}_2023.csv.gz"))
        vidur = list(read_trace(published / f"vidur_splitwise_{part}.csv.gz"))
        assert len(azure) == len(vidur)
        for one, two in zip(azure, vidur, strict=True):
            assert (one.n_prompt_tokens, one.n_output_tokens) == (two.n_prompt_tokens, two.n_output_tokens)
            assert abs(one.arrival_ns - two.arrival_ns) <= 1000  # Vidur has six digits


def test_the_ids_of_both_mooncake_files_agree_with_their_lengths(published: Path) -> None:
    for part in ("conversation", "synthetic"):
        entries = list(read_entries(published / f"mooncake_{part}_trace.jsonl.gz"))
        assert all(not entry.odd for entry in entries)
        assert all(entry.prompt is not None and len(entry.prompt) == -(-entry.n_prompt // 512) for entry in entries)
