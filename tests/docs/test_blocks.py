"""Every code block of the documents is run, in order, in a copy of the sources; ``pytest -rs`` lists the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.docs.blocks import RUN, TOLD, Block, blocks

PACKAGES = ("policies", "sim", "executor", "traces", "conf")
DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md")))
BLOCKS = {document: list(blocks(REPOSITORY / document)) for document in DOCUMENTS}
NOT_RUN = [
    pytest.param(block, id=f"{document}:{block.line}")
    for document, found in BLOCKS.items()
    for block in found
    if block.not_run is not None
]
MOST_S = 300  # of one block, on a machine that does much else


def is_run(block: Block) -> bool:
    return block.not_run is None and (block.file is not None or block.language in RUN)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_what_it_is(document: str) -> None:
    for block in BLOCKS[document]:
        known = is_run(block) or block.not_run is not None or block.language in TOLD
        assert known, f"{document}:{block.line}: a block in {block.language!r} is neither run nor marked"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", [name for name, found in BLOCKS.items() if any(map(is_run, found))])
def test_every_block_of_a_document_does_what_it_says(document: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}
    for block in filter(is_run, BLOCKS[document]):
        if block.file is not None:
            target = tmp_path / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code, encoding="utf-8")
            continue
        command = ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*command, block.code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
        )
        assert done.returncode == 0, f"{document}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("block", NOT_RUN)
def test_blocks_that_are_not_run(block: Block) -> None:
    assert block.not_run
    pytest.skip(block.not_run)
