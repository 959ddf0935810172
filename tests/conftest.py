from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]

# Which is imported first decides which kind of modules the tests of this process have (``conf/compiled.py``): now, as
# the conftest files of folders that are named on the command line come next, and options only after them.
import_module("conf" if "--compiled" in sys.argv else "policies.engine")

# A deadline measures the machine, not the code; with CI set, Hypothesis also derandomises by itself.
settings.register_profile("hbmlab", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1000)  # pytest --hypothesis-profile nightly
settings.load_profile("hbmlab")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--compiled``: with the modules that ``python -m sim compile`` made, which a test run does without."""
    parser.addoption("--compiled", action="store_true", help="test the compiled modules")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test what is not there."""
    from traces.results.provenance import is_compiled

    if config.getoption("--compiled") and not is_compiled():
        raise pytest.UsageError("--compiled: nothing is compiled of these sources; python -m sim compile")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of traces, recorded schedules and measurements: beside the repository and no part of it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared data is not beside the repository")
    return folder
