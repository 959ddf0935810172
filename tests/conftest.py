from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]

# A deadline measures the machine, not the code; with CI set, Hypothesis also derandomises by itself.
settings.register_profile("hbmlab", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1000)  # pytest --hypothesis-profile nightly
settings.load_profile("hbmlab")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--compiled``: with the modules that ``python -m sim compile`` made, which a test run does without."""
    parser.addoption("--compiled", action="store_true", help="test the compiled modules")


def pytest_configure(config: pytest.Config) -> None:
    """Load one kind of modules for all tests of this process: what is imported first decides (``conf/compiled.py``)."""
    is_compiled = config.getoption("--compiled")
    modules = [import_module(name) for name in ("conf", "policies.engine")[:: 1 if is_compiled else -1]]
    files = [module.__file__ or "" for module in modules]
    if is_compiled and not any(".compiled" in file for file in files):
        raise pytest.UsageError("--compiled: the sources have changed; python -m sim compile")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of traces, recorded schedules and measurements: beside the repository and no part of it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared data is not beside the repository")
    return folder
