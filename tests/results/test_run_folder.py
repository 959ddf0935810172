from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.journal import GapCause, HbmUse
from policies.serving.sequence import State
from policies.types import NS_PER_S
from tests.results.scripted import (
    NO_SCHEDULER,
    TABLES,
    batch,
    bytes_of_tables,
    decide,
    info,
    lends,
    report,
    sequence,
    use,
)
from traces.results.folder import read_run
from traces.results.provenance import commit
from traces.results.results import RunWriter
from traces.results.rows import ROW_TYPES, MemoryRow, columns_of
from traces.results.tables import ints, present, texts


def script(folder: Path, *, rows_per_part: int = 100, at_once: bool = True) -> None:
    """Every kind of fact; the five steps of one submission told at once or one by one."""
    ends_ns, stall_ns = [10, 25, 40, 56, 70], [0, 2, 0, 3, 0]
    gaps_ns = [after - before for before, after in pairwise(ends_ns)]
    with RunWriter(folder, info(), rows_per_part=rows_per_part) as writer:
        if at_once:
            writer.ran(0, batch(), report(0, ends_ns, stall_ns))
            writer.gaps(0, GapCause.DECODE, gaps_ns, 3)
        else:
            for start, end, stall in zip([0, *ends_ns], ends_ns, stall_ns, strict=False):
                writer.ran(0, batch(), report(start, [end], [stall]))
            for gap_ns in gaps_ns:
                writer.gaps(0, GapCause.DECODE, [gap_ns], 3)
        writer.hbm(70, [use(0), use(1)])
        decide(writer, 1, [], [2])
        writer.retired(0, 70, [sequence(1, tokens_s=[1, 2]), sequence(2, state=State.DROPPED)], NO_SCHEDULER)


@pytest.mark.parametrize("name", TABLES)
def test_a_tables_columns_are_the_fields_of_its_dataclass(tmp_path: Path, name: str) -> None:
    script(tmp_path / "run")
    run = read_run(tmp_path / "run")
    row_type = {str(table): row for table, row in ROW_TYPES.items()}[name]
    assert list(getattr(run, name).columns) == [field.name for field in fields(row_type)]
    assert len(getattr(run, name)) > 0


def test_a_memory_row_is_an_instant_and_every_field_of_the_use_of_hbm() -> None:
    assert [field.name for field in fields(MemoryRow)] == ["at_ns", *(field.name for field in fields(HbmUse))]


def test_only_what_can_be_absent_is_nullable() -> None:
    nullable = {name: [c.name for c in columns_of(row) if c.nullable] for name, row in ROW_TYPES.items()}
    assert nullable == {
        "requests": ["first_token_ns", "finish_ns", "scheduled_ns", "mean_gap_ns", "max_gap_ns"],
        "steps": [],
        "decisions": [*(f"{option}_cost_ns" for option in ("evict", "offload", "both", "preempt")), "view", "targets"],
        "memory": [],
        "gaps": [],
    }


def test_steps_told_at_once_or_one_by_one_in_parts_of_any_size_give_the_same_steps(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("at_once", "singly", "small_parts")]
    script(folders[0])
    script(folders[1], at_once=False)
    script(folders[2], rows_per_part=2)
    steps = [read_run(folder).steps for folder in folders]
    assert steps[0] is not None
    assert ints(steps[0], "start_ns").tolist() == [0, 10, 25, 40, 56]
    assert all(steps[0].equals(other) for other in steps)


@pytest.mark.parametrize("rows_per_part", [2, 100])
def test_the_same_facts_give_the_same_bytes_however_they_were_told(tmp_path: Path, rows_per_part: int) -> None:
    script(tmp_path / "a", rows_per_part=rows_per_part)
    script(tmp_path / "b", rows_per_part=rows_per_part, at_once=False)
    assert bytes_of_tables(tmp_path / "a") == bytes_of_tables(tmp_path / "b")


def test_parts_are_merged_and_nothing_else_is_left(tmp_path: Path) -> None:
    script(tmp_path, rows_per_part=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run.json", *(f"{n}.parquet" for n in TABLES)])


def test_waits_before_a_submission_are_stalls_of_its_first_step(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        writer.ran(0, batch(), report(0, [50, 60], [4, 5], swap_ns=10, remap_ns=100))
    steps = read_run(tmp_path).steps
    assert steps is not None
    assert ints(steps, "stall_ns").tolist() == [114, 5]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(GapCause),
            st.lists(st.integers(1, 5), max_size=4),
            st.integers(1, 9),
        )
    ),
    st.integers(1, 7),
)
def test_the_gaps_table_counts_every_gap(calls: list[tuple[int, GapCause, list[int], int]], rows_per_part: int) -> None:
    expected: Counter[tuple[int, str, int]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with RunWriter(Path(folder), info(), tables=("requests", "gaps"), rows_per_part=rows_per_part) as writer:
            for model, cause, gaps_ns, n_requests in calls:
                writer.gaps(model, cause, gaps_ns, n_requests)
                expected.update({(model, cause.name.lower(), gap_ns): 0 for gap_ns in gaps_ns})
                for gap_ns in gaps_ns:
                    expected[model, cause.name.lower(), gap_ns] += n_requests
        gaps = read_run(Path(folder)).gaps
    keys = list(zip(ints(gaps, "model").tolist(), texts(gaps, "cause"), ints(gaps, "gap_ns").tolist(), strict=True))
    assert keys == sorted(expected)
    assert ints(gaps, "n").tolist() == [expected[key] for key in keys]


def test_a_memory_row_is_written_only_when_something_changed(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        writer.hbm(1, [use(0), use(1)])
        writer.hbm(2, [use(0), use(1, n_base_used=3)])
        writer.hbm(3, [use(0), use(1, n_base_used=3)])
    memory = read_run(tmp_path).memory
    assert memory is not None
    assert list(zip(ints(memory, "at_ns"), ints(memory, "model"), strict=True)) == [(1, 0), (1, 1), (2, 1)]


def test_a_decision_keeps_what_it_saw_and_wants_only_when_it_changed_something(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        decide(writer, 1, [], [2])
        decide(writer, 2, [2], [2, 3], refused=True)
        decide(writer, 3, [2], [2])
    decisions = read_run(tmp_path).decisions
    assert decisions is not None
    assert texts(decisions, "ask") == ["waiting_short"] * 3
    assert ints(decisions, "refused").tolist() == [0, 1, 0]
    kept = present(decisions, "view")
    assert ints(kept, "at_ns").tolist() == [NS_PER_S]
    seen, wanted = (json.loads(texts(kept, column)[0]) for column in ("view", "targets"))
    assert seen["ask"] == "waiting_short"
    assert seen["models"][0]["residency"]["homes"] == [0, 1, 2, 3]
    assert [tuple(target["cycling"]) for target in wanted] == [target.cycling for target in lends([2])]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "KeyboardInterrupt"), (RuntimeError("no power"), "RuntimeError: no power")],
)
def test_an_interrupted_run_is_marked_and_keeps_what_it_had(tmp_path: Path, error: BaseException, reason: str) -> None:
    def interrupted() -> None:
        with RunWriter(tmp_path, info()) as writer:
            writer.outlived(0, [sequence(1, state=State.RUNNING, tokens_s=[1])])
            raise error

    with pytest.raises(type(error)):
        interrupted()
    run = read_run(tmp_path)
    assert (run.state, run.reason) == ("incomplete", reason)
    assert texts(run.requests, "outcome") == ["running"]


def test_a_run_that_died_is_read_from_its_parts(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, info(), rows_per_part=2)
    writer.retired(0, 0, [sequence(number) for number in range(5)], NO_SCHEDULER)
    writer.gaps(0, GapCause.DECODE, [7, 7], 1)
    writer.gaps(0, GapCause.DECODE, [9, 7], 1)
    writer.catch_up()
    run = read_run(tmp_path)
    assert run.state == "running"
    assert ints(run.requests, "request_id").tolist() == [0, 1, 2, 3]
    # Two rows make a part: 7 ns twice, 7 ns once more; 9 ns was still waiting.
    assert ints(run.gaps, "gap_ns").tolist() == [7]
    assert ints(run.gaps, "n").tolist() == [3]
    assert run.steps is not None
    assert len(run.steps) == 0


def test_a_complete_run_says_what_it_was(tmp_path: Path) -> None:
    given = info(config={"policy": {"cap": 0.5}}, hbm_bytes=96)
    with RunWriter(tmp_path, given):
        pass
    run = read_run(tmp_path)
    assert (run.info, run.state, run.reason) == (given, "complete", None)
    header = json.loads((tmp_path / "run.json").read_text())
    assert header["schema_version"] == 1
    assert header["started"] <= header["finished"]
    assert header["versions"]["pyarrow"]


def test_the_commit_is_that_of_this_source_tree() -> None:
    found = commit()
    assert found is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", found)


def test_a_table_that_is_not_kept_is_absent(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info(), tables=("requests", "gaps")) as writer:
        writer.ran(0, batch(), report(0, [1], [0]))
        writer.hbm(1, [use(0)])
        decide(writer, 1, [], [2])
    run = read_run(tmp_path)
    assert (run.steps, run.decisions, run.memory) == (None, None, None)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/run cannot be written \(Not a directory\); choose"):
        RunWriter(tmp_path / "file" / "run", info())


def test_a_folder_with_a_run_is_never_written_over(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()):
        pass
    with pytest.raises(ValueError, match="holds a run already; choose another"):
        RunWriter(tmp_path, info())


def test_requests_and_gaps_must_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep requests and gaps"):
        RunWriter(tmp_path, info(), tables=("requests", "steps"))


def test_a_folder_without_a_run_and_one_of_another_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name the folder of a run"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"schema_version": 0}')
    with pytest.raises(ValueError, match="schema version 0, this code reads 1"):
        read_run(tmp_path)
