from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.formats import detect, read_entries, read_trace
from traces.writing.canonical import ENDINGS, Line, write
from traces.writing.convert import converted
from traces.writing.convert import main as convert

names = st.text(st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp"), blacklist_characters="|:"), min_size=1)
lines = st.builds(
    Line,
    arrival_ns=st.integers(0, 10**15),
    n_prompt_tokens=st.just(7),
    n_output_tokens=st.integers(0, 10**6),
    session=st.none() | st.sampled_from(["a", "7", 'q"x, y', "é"]),
    think_ns=st.none() | st.integers(0, 10**15),
    prompt=st.none() | st.just((("b1", 3), ("b:2", 4))),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(lines, min_size=1, max_size=20), st.sampled_from(ENDINGS))
def test_what_is_written_is_read_again(tmp_path: Path, written: list[Line], ending: str) -> None:
    out = tmp_path / f"trace{ending}"
    assert write(out, written) == len(written)
    assert detect(out).name == "hbmlab"
    read = [Line(e.time_ns, e.n_prompt, e.n_output, e.session, e.think_ns, e.prompt) for e in read_entries(out)]
    assert read == written
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "name", ["azure_conv_2023.csv.gz", "mooncake_synthetic_trace.jsonl.gz", "ragpulse_0_trace.jsonl.gz"]
)
def test_a_converted_trace_has_the_same_rows(published: Path, tmp_path: Path, name: str, ending: str) -> None:
    out = tmp_path / f"out{ending}"
    write(out, converted(published / name))
    assert list(read_trace(out)) == list(read_trace(published / name, sort=True))


def test_a_trace_without_times_keeps_the_order_of_its_file(published: Path, tmp_path: Path) -> None:
    path, out = published / "lmcache_hf_agentic_shard4.jsonl.gz", tmp_path / "out.csv"
    write(out, converted(path))
    for before, after in zip(read_entries(path), read_entries(out), strict=True):
        assert before[1:7] == after[1:7]


def test_a_faulty_row_stops_it_and_leaves_nothing_unless_it_is_to_be_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "in.jsonl", tmp_path / "out.csv"
    good = json.dumps({"timestamp": 0, "input_length": 1, "output_length": 1})
    path.write_text(f"{good}\n{{bad\n{good}\n")
    with pytest.raises(ValueError, match=":2: no JSON"):
        convert([str(path), str(out)])
    assert list(tmp_path.iterdir()) == [path]
    assert convert([str(path), str(out), "--skip-faulty"]) == 0
    assert "left out 1 rows" in capsys.readouterr().err
    assert len(list(read_trace(out))) == 2


def test_a_file_that_is_there_is_not_written_over_unasked(tmp_path: Path) -> None:
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n")
    out.write_text("mine")
    with pytest.raises(ValueError, match="is there"):
        convert([str(path), str(out)])
    with pytest.raises(ValueError, match="is the file that is read"):
        convert([str(path), str(path), "--force"])
    assert convert([str(path), str(out), "--force"]) == 0
    assert out.read_text() != "mine"


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.csv.gz", "two.csv.gz"):
        write(tmp_path / name, [Line(0, 1, 1)])
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "two.csv.gz").read_bytes()
