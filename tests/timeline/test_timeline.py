from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from conf.carry_out import carry_out
from policies.types import GIB, NS_PER_S
from tests.conf.test_build import built
from tests.page.runs import run as scripted
from traces.__main__ import COMMANDS
from traces.cli import dispatch
from traces.results.copies import copies_of
from traces.results.folder import RunTables, read_run
from traces.timeline import write
from traces.timeline.timeline import Window, default_window, events

DEMO = ("+experiment=demo", "compare=[mirage]", "output.figures=false")
SPAN = (8.5, 9.5)  # the demo lends its first layers at 8.67 s
H2D_BYTES_PER_S = 427_000_000_000  # conf/hardware/gh200_paper.yaml

Event = dict[str, Any]

NEEDS = {  # by phase; source: "Trace Event Format", the Chromium project
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "pid", "tid", "ts", "id", "cat"},
    "f": {"name", "pid", "tid", "ts", "id", "cat", "bp"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunTables:
    (each,) = built(*DEMO, f"timeline.window=[{SPAN[0]},{SPAN[1]}]").runs
    return read_run(carry_out(each, tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def told(run: RunTables) -> list[Event]:
    """The events as another program reads them."""
    document = json.loads(gzip.decompress((run.folder / write.NAME).read_bytes()))
    assert document["displayTimeUnit"] == "ns"
    return document["traceEvents"]


def of(told: Iterable[Event], *phases: str) -> list[Event]:
    return [event for event in told if event["ph"] in phases]


def ns(us: float) -> int:
    return round(us * 1000)


def span(event: Event) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def lanes(told: Iterable[Event]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of(told, "X"):
        found[event["pid"], event["tid"]].append(span(event))
    return found


def test_every_event_has_what_the_format_demands_and_its_lane_has_a_name(told: list[Event]) -> None:
    names = {(event["pid"], event["tid"]) for event in of(told, "M") if event["name"] == "thread_name"}
    for event in told:
        assert NEEDS[event["ph"]] <= event.keys()
        assert event["ph"] in "MC" or (event["pid"], event["tid"]) in names
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 1) > 0


def test_slices_of_a_lane_lie_within_each_other_or_apart(told: list[Event]) -> None:
    assert len(lanes(told)) >= 4
    for spans in lanes(told).values():
        under_way: list[int] = []
        for start, end in sorted(spans, key=lambda each: (each[0], -each[1])):
            while under_way and under_way[-1] <= start:
                under_way.pop()
            assert not under_way or end <= under_way[-1]
            under_way.append(end)


def test_counters_go_on_in_time_and_what_has_crossed_the_link_never_shrinks(told: list[Event]) -> None:
    series: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in of(told, "C"):
        assert all(value >= 0 for value in event["args"].values())
        series[event["pid"], event["name"]].append(event)
    for found in series.values():
        assert [each["ts"] for each in found] == sorted(each["ts"] for each in found)
    (crossed,) = [found for (_, name), found in series.items() if name.startswith("GiB host to device")]
    values = [each["args"]["GiB"] for each in crossed]
    assert values == sorted(values)


def test_every_arrow_leads_from_a_change_to_a_fetch_that_it_caused(told: list[Event]) -> None:
    starts = {event["id"]: event for event in of(told, "s")}
    ends = {event["id"]: event for event in of(told, "f")}
    assert starts
    assert starts.keys() == ends.keys()
    slices = lanes(told)
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        for event in (start, end):
            assert any(first <= ns(event["ts"]) <= last for first, last in slices[event["pid"], event["tid"]])
    assert all(end["bp"] == "e" for end in ends.values())


def test_steps_and_stalls_are_those_of_the_table(told: list[Event], run: RunTables) -> None:
    steps = run.columns("steps", ("start_ns", "end_ns", "stall_ns"))
    inside = (steps["start_ns"] <= SPAN[1] * NS_PER_S) & (steps["end_ns"] >= SPAN[0] * NS_PER_S)
    drawn = [event for event in of(told, "X") if event["name"].startswith(("prefill", "decode"))]
    assert sorted(map(span, drawn)) == list(
        zip(steps["start_ns"][inside].tolist(), steps["end_ns"][inside].tolist(), strict=True)
    )
    waited = sum(ns(event["dur"]) for event in of(told, "X") if event["name"] == "waited")
    assert waited == steps["stall_ns"][inside].sum()


def test_fetches_take_as_long_as_the_link_says(run: RunTables) -> None:
    copies = list(copies_of(run.folder))
    assert copies
    for copy in copies:
        assert copy.kind == "fetch"
        assert copy.requested_ns <= copy.start_ns
        assert copy.end_ns - copy.start_ns == -(-copy.n_bytes * NS_PER_S // H2D_BYTES_PER_S)


def test_the_owners_of_hbm_are_known_from_the_beginning_of_the_window(told: list[Event], run: RunTables) -> None:
    (name,) = [model.name for model in run.info.models]
    first = next(event for event in of(told, "C") if event["name"] == f"{name} (GiB)")
    assert ns(first["ts"]) == SPAN[0] * NS_PER_S
    assert first["args"]["lent to a KV cache"] == 0
    last = [event for event in of(told, "C") if event["name"] == f"{name} (GiB)"][-1]
    assert last["args"]["lent to a KV cache"] * GIB == 3 * 629_278_720  # three layers: conf/model/opt_13b.yaml


def test_a_run_comes_out_the_same_with_a_timeline(run: RunTables, tmp_path: Path) -> None:
    (each,) = built(*DEMO).runs
    carry_out(each, tmp_path)
    assert not (tmp_path / write.NAME).exists()
    for table in ("requests", "steps", "decisions", "memory", "gaps"):
        assert (tmp_path / f"{table}.parquet").read_bytes() == (run.folder / f"{table}.parquet").read_bytes()


def test_a_run_without_copies_has_a_timeline_around_its_first_change(tmp_path: Path, capsys: Any) -> None:
    scripted(tmp_path)
    window = default_window(read_run(tmp_path))
    assert (window.from_ns, window.until_ns) == (500_000_000, 10_500_000_000)
    assert dispatch("python -m traces", COMMANDS, ["timeline", str(tmp_path)]) == 0
    assert "without copies" in capsys.readouterr().out
    found = events(read_run(tmp_path), window)
    assert "lent 1 layer of left to the KV cache of right; 1 lent now" in {event["name"] for event in found}


@pytest.mark.parametrize("window", ["3,1", "1", "1,2,3", "x,y", "-1,2"])
def test_a_window_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path, capsys: Any, window: str) -> None:
    scripted(tmp_path)
    assert dispatch("python -m traces", COMMANDS, ["timeline", str(tmp_path), f"--window={window}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_too_many_events_are_refused_before_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MOST_EVENTS", 3)
    with pytest.raises(ValueError, match="more than 3; name a shorter --window"):
        write.write_timeline(scripted(tmp_path), Window.seconds((0, 10)), tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
