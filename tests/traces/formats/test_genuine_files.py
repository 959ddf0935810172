from __future__ import annotations

from pathlib import Path

import pytest

from policies.types import NS_PER_S
from traces.formats import OutOfOrderError, TraceRow, read_entries, read_trace


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
