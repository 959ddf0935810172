"""Held against vLLM 0.15.1 itself: each case is a trace, its options, and what vLLM's own scheduler did.

The cases are copies of the recorded ones (reference/vllm_scheduler.md, section 6).
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.schedule import main
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "data" / "oracle_v1"
NAMES = sorted(path.name.removesuffix(".args.json") for path in FOLDER.glob("*.args.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_the_one_that_vllm_took(name: str, tmp_path: Path) -> None:
    with gzip.open(FOLDER / f"{name}.expected.jsonl.gz", "rt", encoding="utf-8") as file:
        expected = file.read().splitlines()
    trace, args, out = FOLDER / f"{name}.csv", FOLDER / f"{name}.args.json", tmp_path / "out.jsonl"
    assert main(["--scheduler", "vllm_v1", "--trace", str(trace), "--args", str(args), "--out", str(out)]) == 0
    ours = out.read_text(encoding="utf-8").splitlines()
    for theirs, mine in zip(expected, ours, strict=False):
        assert mine == theirs
    assert len(ours) == len(expected)
