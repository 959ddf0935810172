from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import conf
from conf.build import Experiment


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Experiment, Path]]:
    """Stands in for what carries an experiment out: what it was told, (experiment, folder)."""
    seen: list[tuple[Experiment, Path]] = []

    def run(experiment: Experiment, folder: Path) -> None:
        seen.append((experiment, folder))

    compare = ModuleType("conf.compare")
    compare.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "conf.compare", compare)
    monkeypatch.setattr(conf, "compare", compare, raising=False)
    return seen


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """The run command in an empty folder."""
    from conf.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # ``main`` sets it; undone afterwards
    monkeypatch.setattr(sys, "argv", ["python -m sim run"])
    return lambda *arguments: main(arguments)
