"""Held against vLLM 0.7.3 itself: each case is a trace, its options, and what vLLM's own scheduler did.

The cases are copies of the recorded ones (reference/vllm_scheduler.md, section 6).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sim.schedule import main
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "data" / "oracle_v0"
NAMES = sorted(path.name.removesuffix(".args.json") for path in FOLDER.glob("*.args.json"))


def _schedule(name: str, out: Path, *flags: str) -> list[str]:
    """Run the command on a case; its records but for ``meta``."""
    trace, args = FOLDER / f"{name}.csv", FOLDER / f"{name}.args.json"
    command = ["--scheduler", "vllm_v0", "--trace", str(trace), "--args", str(args), "--out", str(out), *flags]
    assert main(command) == 0
    return out.read_text(encoding="utf-8").splitlines()[1:]


def _caches(name: str) -> bool:
    return json.loads((FOLDER / f"{name}.args.json").read_text(encoding="utf-8"))["prefix_caching"] == "on"


@pytest.mark.parametrize("name", NAMES)
def test_every_step_is_the_one_that_vllm_took(name: str, tmp_path: Path) -> None:
    with gzip.open(FOLDER / f"{name}.expected.jsonl.gz", "rt", encoding="utf-8") as file:
        expected = file.read().splitlines()[1:]
    ours = _schedule(name, tmp_path / "out.jsonl")
    for theirs, mine in zip(expected, ours, strict=False):
        assert mine == theirs
    assert len(ours) == len(expected)


@pytest.mark.parametrize("name", [name for name in NAMES if not _caches(name)])
def test_leaps_write_the_same_log(name: str, tmp_path: Path) -> None:
    assert _schedule(name, tmp_path / "leaps.jsonl", "--leaps", "on") == _schedule(name, tmp_path / "single.jsonl")
