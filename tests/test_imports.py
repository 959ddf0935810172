"""What import-linter cannot say: which parts of the standard library decisions may use, and what loads lazily."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PURE = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
    "weakref",
}
"""Modules without clock, randomness, logging, files or processes."""

POLICIES = sorted((REPOSITORY / "policies").rglob("*.py"))


def _imported(source: Path) -> Iterator[str]:
    """Top-level names of everything that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{source}: relative imports hide the layer they come from"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("source", POLICIES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_policies_import_only_themselves_and_pure_modules(source: Path) -> None:
    assert set(_imported(source)) <= PURE | {"policies"}


def test_the_commands_are_listed_without_loading_what_they_need() -> None:
    code = "import sys, sim.__main__; print({'hydra', 'numpy', 'simpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
