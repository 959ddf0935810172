from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.formats.samples import MS, entries_of
from traces.formats import first_tokens, read_entries


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
