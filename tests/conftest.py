from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]

# A deadline measures the machine, not the code; with CI set, Hypothesis also derandomises by itself.
settings.register_profile("hbmlab", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=1000)  # pytest --hypothesis-profile nightly
settings.load_profile("hbmlab")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of traces, recorded schedules and measurements: beside the repository and no part of it."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared data is not beside the repository")
    return folder
