from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.journal import GapCause
from policies.serving.sequence import State
from tests.results.scripted import NO_SCHEDULER, batch, info, report, sequence
from traces.results.arrays import labels_of, table_of, values_in
from traces.results.feed import MOST_WAITING, Worker
from traces.results.gaps import increasing
from traces.results.results import RunWriter
from traces.results.rows import Column, Kind, label
from traces.results.steps import StepRuns, each_step

INT64 = st.integers(-(2**62), 2**62 - 1)
SUBMISSIONS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 3])), min_size=1, max_size=4),
        st.integers(0, 5),
    ),
    min_size=1,
)


@given(st.lists(st.tuples(INT64, st.integers(0, 3)), max_size=50))
def test_the_order_of_rows_is_that_of_numpys_lexsort(rows: list[tuple[int, int]]) -> None:
    low, high = np.array(rows, np.int64).reshape(-1, 2).T
    assert increasing(low, high).tolist() == np.lexsort((low, high)).tolist()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int32", [3, -1, 2**31 - 1]),
        ("int64", [3, -1, 2**63 - 1]),
        ("bool", [True, False, True]),
        ("json", ["{}", None, '"ä"']),
    ],
)
def test_a_column_is_read_as_it_was_stored_also_where_a_part_of_it_begins(kind: Kind, values: list[object]) -> None:
    column = Column("c", kind, nullable=kind == "json")
    table = table_of([column], [values])
    for start in range(3):
        assert list(values_in(column, table.slice(start)["c"])) == values[start:]


def test_an_absent_number_is_absent_and_the_others_are_kept() -> None:
    column = Column("c", "int64", nullable=True)
    assert table_of([column], [[7, None, 9]])["c"].to_pylist() == [7, None, 9]


def test_labels_are_read_as_words_and_all_of_an_enum_are_in_the_file_whichever_came() -> None:
    column = Column("c", "label", nullable=False)
    members = [State.FINISHED, State.DROPPED, State.FINISHED]
    table = table_of([column], [members])
    assert list(values_in(column, table["c"])) == [label(member) for member in members]
    assert labels_of(members).words == [label(member) for member in State]


@given(SUBMISSIONS)
def test_submissions_are_written_out_step_by_step(
    submissions: list[tuple[int, list[tuple[int, int]], int]],
) -> None:
    runs, expected, now_ns = StepRuns(), list[tuple[int, ...]](), 100
    for model, steps, waits_ns in submissions:
        n_stalls = len(steps) if any(stall_ns for _, stall_ns in steps) else 0
        n_rests = len(steps) if len({lasts_ns for lasts_ns, _ in steps}) > 1 else 0  # a tenth of each step, say
        runs.facts.extend((model, 5, 6, now_ns, len(steps), waits_ns, n_stalls, steps[0][0] // 10, n_rests))
        if n_rests:
            runs.rests_ns.extend(lasts_ns // 10 for lasts_ns, _ in steps)
        if any(stall_ns for _, stall_ns in steps):
            runs.stalls_ns.extend(stall_ns for _, stall_ns in steps)
        for number, (lasts_ns, stall_ns) in enumerate(steps):
            waited_ns = stall_ns + (0 if number else waits_ns)
            expected.append((model, now_ns, now_ns + lasts_ns, 5, 6, waited_ns, lasts_ns // 10))
            now_ns += lasts_ns
            runs.ends_ns.append(now_ns)
        now_ns += 1000
    assert list(zip(*each_step(runs), strict=True)) == expected


def test_tasks_are_done_in_order_and_no_more_than_a_few_wait() -> None:
    worker, go, done = Worker(), Event(), list[int]()

    def task(number: int) -> None:
        go.wait(60)
        done.append(number)

    for number in range(MOST_WAITING):
        worker.do(partial(task, number))
    assert done == []
    go.set()
    worker.do(partial(task, MOST_WAITING))
    worker.stop()
    assert done == list(range(MOST_WAITING + 1))


def test_an_error_of_a_task_comes_out_of_a_later_call_and_what_follows_is_not_done() -> None:
    worker, go, done = Worker(), Event(), list[int]()

    def fail() -> None:
        go.wait(60)
        raise OSError("no space left")

    worker.do(fail)
    worker.do(lambda: done.append(1))
    go.set()
    with pytest.raises(OSError, match="no space left"):
        worker.catch_up()
    worker.stop()
    assert done == []


def test_a_disk_that_fails_ends_the_run(tmp_path: Path) -> None:
    def run() -> None:
        with RunWriter(tmp_path / "run", info(), rows_per_part=1) as writer:
            (tmp_path / "run" / "run.json").unlink()
            (tmp_path / "run").rmdir()
            writer.ran(0, batch(), report(0, [10], [0]))
            writer.catch_up()

    with pytest.raises(OSError, match="No such file"):
        run()


def test_results_are_kept_and_summed_up_without_pandas(tmp_path: Path) -> None:
    with RunWriter(tmp_path, info()) as writer:
        writer.retired(0, 0, [sequence(1, tokens_s=[1, 2])], NO_SCHEDULER)
        writer.gaps(0, GapCause.DECODE, [10**9], 1)
        writer.ran(0, batch(), report(0, [10], [0]))
    program = f"""
import sys
from pathlib import Path
from tests.results.scripted import info
from traces.results.metrics import write_summary
from traces.results.results import RunWriter

write_summary(Path({str(tmp_path)!r}))
with RunWriter(Path({str(tmp_path / "again")!r}), info()):
    pass
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
